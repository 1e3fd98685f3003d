"""An EarlyStopping object with the best state, and a PolynomialDecayLR of one's own, as a graph transformer's train.py."""

import copy
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

import elasticd as elastic


class PolynomialDecayLR(LRScheduler):
    def __init__(self, optimizer, warmup_updates, tot_updates, lr, end_lr, power, last_epoch=-1):
        self.warmup_updates, self.tot_updates = warmup_updates, tot_updates
        self.lr, self.end_lr, self.power = lr, end_lr, power
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        if self._step_count <= self.warmup_updates:
            self.warmup_factor = self._step_count / float(self.warmup_updates)
            lr = self.warmup_factor * self.lr
        elif self._step_count >= self.tot_updates:
            lr = self.end_lr
        else:
            remaining = 1 - (self._step_count - self.warmup_updates) / (self.tot_updates - self.warmup_updates)
            lr = (self.lr - self.end_lr) * remaining**self.power + self.end_lr
        return [lr for group in self.optimizer.param_groups]


class EarlyStopping:
    def __init__(self, model, patience):
        self.model = model
        self.patience = self.max_patience = patience
        self.best_vals, self.best_epoch, self.best_state = [0.0, float("inf")], None, None

    def check(self, values, epoch):
        if values[0] >= self.best_vals[0] or values[1] <= self.best_vals[1]:
            if values[0] >= self.best_vals[0] and values[1] <= self.best_vals[1]:
                self.best_epoch = epoch
                self.best_state = {key: value.cpu().clone() for key, value in self.model.state_dict().items()}
            self.best_vals = [max(values[0], self.best_vals[0]), min(values[1], self.best_vals[1])]
            self.patience = self.max_patience
        else:
            self.patience -= 1
        return self.patience == 0


torch.manual_seed(3407)
features = torch.randn(192, 3, 8)
labels = (features.mean(1)[:, 0] + 0.3 * torch.randn(192) > 0).long()
train_set = torch.utils.data.TensorDataset(features[:128], labels[:128])
train_data_loader = torch.utils.data.DataLoader(train_set, batch_size=4, shuffle=True)
val_data_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(features[128:], labels[128:]), batch_size=16, shuffle=True
)


class TransformerModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 2)

    def forward(self, tokens):
        return F.log_softmax(self.out(self.layer(tokens).mean(1)), 1)


run = elastic.join()
model = TransformerModel()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1e-5)
lr_scheduler = PolynomialDecayLR(optimizer, 4, 40, 0.01, 0.0001, 1.0)
model, optimizer, train_data_loader = run.prepare(model, optimizer, train_data_loader)


def train_valid_epoch(epoch):
    model.train()
    loss_train_b, acc_train_b = 0, 0
    for _, item in enumerate(train_data_loader):
        nodes_features, labels = item[0], item[1]
        optimizer.zero_grad()
        output = model(nodes_features)
        loss_train = F.nll_loss(output, labels)
        loss_train.backward()
        optimizer.step()
        lr_scheduler.step()
        loss_train_b += loss_train.item()
        acc_train_b += (output.argmax(1) == labels).sum().item()
    model.eval()
    loss_val, acc_val = 0, 0
    for _, item in enumerate(val_data_loader):
        output = model(item[0])
        loss_val += F.nll_loss(output, item[1]).item()
        acc_val += (output.argmax(1) == item[1]).sum().item()
    print(f"Epoch: {epoch + 1:04d} loss_train: {loss_train_b:.4f} loss_val: {loss_val:.4f} acc_val: {acc_val / 64:.4f}")
    return loss_val, acc_val


t_total = time.time()
early_stopping = EarlyStopping(model, patience=3)
for epoch in run.epochs(5):
    loss_val, acc_val = train_valid_epoch(epoch)
    if early_stopping.check([acc_val, loss_val], epoch):
        break
print(f"Train cost: {time.time() - t_total:.4f}s, loading epoch {early_stopping.best_epoch + 1}")
model.load_state_dict(copy.deepcopy(early_stopping.best_state))
run.save(model.state_dict(), "best.pt")
