"""MAML with a functional forward pass, and an iterator over validation tasks that goes on between epochs, as a maml.py for Omniglot."""

from collections import OrderedDict

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split
from tqdm import tqdm

import elasticd as elastic


class Classifier(nn.Module):
    def __init__(self, k_way):
        super().__init__()
        self.hidden, self.logits = nn.Linear(8, 12), nn.Linear(12, k_way)

    def functional_forward(self, x, params):
        x = F.relu(F.linear(x, params["hidden.weight"], params["hidden.bias"]))
        return F.linear(x, params["logits.weight"], params["logits.bias"])


def create_label(n_way, k_shot):
    return torch.arange(n_way).repeat_interleave(k_shot).long()


def MAML(model, optimizer, x, n_way, k_shot, q_query, loss_fn, inner_train_step=1, inner_lr=0.4, train=True):
    task_loss = []
    task_acc = []
    for meta_batch in x:
        train_set = meta_batch[: n_way * k_shot]
        val_set = meta_batch[n_way * k_shot :]
        fast_weights = OrderedDict(model.named_parameters())
        for inner_step in range(inner_train_step):
            logits = model.functional_forward(train_set, fast_weights)
            loss = loss_fn(logits, create_label(n_way, k_shot))
            grads = torch.autograd.grad(loss, fast_weights.values(), create_graph=True)
            fast_weights = OrderedDict(
                (name, param - inner_lr * grad) for ((name, param), grad) in zip(fast_weights.items(), grads)
            )
        val_label = create_label(n_way, q_query)
        logits = model.functional_forward(val_set, fast_weights)
        task_loss.append(loss_fn(logits, val_label))
        task_acc.append((torch.argmax(logits, -1) == val_label).float().mean().item())
    model.train()
    optimizer.zero_grad()
    meta_batch_loss = torch.stack(task_loss).mean()
    if train:
        meta_batch_loss.backward()
        optimizer.step()
    return meta_batch_loss, np.mean(task_acc)


class Omniglot(Dataset):
    def __init__(self, k_shot, q_query):
        self.centres = torch.randn(144, 3, 8)
        self.n = k_shot + q_query

    def __getitem__(self, idx):
        sample = np.arange(6)
        np.random.shuffle(sample)
        noise = torch.randn(6, 3, 8)[sample[: self.n]]
        return (self.centres[idx] + 0.3 * noise).reshape(-1, 8)

    def __len__(self):
        return len(self.centres)


def get_meta_batch(data_loader, iterator):
    try:
        task_data = next(iterator)
    except StopIteration:
        iterator = iter(data_loader)
        task_data = next(iterator)
    return task_data, iterator


if __name__ == "__main__":
    n_way, k_shot, q_query = 3, 1, 1
    torch.manual_seed(0)
    train_set, val_set = random_split(Omniglot(k_shot, q_query), [128, 16])
    train_loader = DataLoader(train_set, batch_size=4, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=4, shuffle=True, drop_last=True)
    val_iter = iter(val_loader)
    run = elastic.join()
    meta_model = Classifier(n_way)
    optimizer = torch.optim.Adam(meta_model.parameters(), lr=0.001)
    loss_fn = nn.CrossEntropyLoss()
    meta_model, optimizer, train_loader = run.prepare(meta_model, optimizer, train_loader)
    for epoch in run.epochs(4):
        print("Epoch %d" % (epoch))
        train_meta_loss = []
        train_acc = []
        for x in tqdm(train_loader):
            meta_loss, acc = MAML(meta_model, optimizer, x, n_way, k_shot, q_query, loss_fn)
            train_meta_loss.append(meta_loss.item())
            train_acc.append(acc)
        print("  Loss    : ", np.mean(train_meta_loss), "  Accuracy: ", np.mean(train_acc))
        val_acc = []
        for eval_step in tqdm(range(2)):
            x, val_iter = get_meta_batch(val_loader, val_iter)
            _, acc = MAML(
                meta_model, optimizer, x, n_way, k_shot, q_query, loss_fn, inner_train_step=3, train=False
            )
            val_acc.append(acc)
        print("  Validation accuracy: ", np.mean(val_acc))
    run.save(meta_model, "maml.pt")
