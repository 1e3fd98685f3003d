"""A loss at a temperature against a fixed teacher, rate and momentum set by a function after each epoch, as a knowledge distillation's train.py."""

import torch
import torch.nn as nn
from torch import optim
from torch.utils.data import DataLoader, Dataset, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class Jitter(Dataset):
    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.images[i].roll(int(torch.randint(-1, 2, (1,)))), self.labels[i]


class LocalParams:
    lr = 0.1
    momentum = 0.5
    epochs = 4

    @staticmethod
    def optimizer_update_fn(optimizer, epoch):
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
            group["momentum"] = min(0.9, 0.5 + 0.1 * (epoch + 1))


class CrossEntropyLossSoft(nn.Module):
    def forward(self, logits, target):
        return -(target * torch.log_softmax(logits, 1)).sum(1).mean()


def test(model, loader):
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(1) == labels).sum().item()
            total += len(labels)
    return correct / total, total - correct


def distillation(model, teacher, temperature, dataset, train_params, testset):
    optimizer = optim.SGD(model.parameters(), lr=train_params.lr, momentum=train_params.momentum)
    criterion = CrossEntropyLossSoft()
    hard = nn.CrossEntropyLoss()
    model, optimizer, dataset = run.prepare(model, optimizer, dataset)
    validation_scores = []
    epoch_losses = []
    teacher.eval()
    for epoch in run.epochs(train_params.epochs):
        model.train()
        epoch_loss = 0
        for input, target in tqdm(dataset):
            optimizer.zero_grad()
            logits = model(input)
            with torch.no_grad():
                soft_target = torch.softmax(teacher(input) / temperature, 1)
            loss = temperature**2 * criterion(logits / temperature, soft_target) + hard(logits, target)
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
        epoch_loss /= len(dataset)
        epoch_losses.append(epoch_loss)
        acc, incorrect = test(model, testset)
        validation_scores.append(acc)
        print(f"Epoch {epoch} loss: {epoch_loss} acc: {acc}")
        train_params.optimizer_update_fn(optimizer, epoch)
    return model, epoch_losses, validation_scores


if __name__ == "__main__":
    torch.manual_seed(0)
    images = torch.randn(160, 12)
    labels = images[:, :3].argmax(1)
    train_loader = DataLoader(Jitter(images[:128], labels[:128]), batch_size=4, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[128:], labels[128:]), batch_size=8)
    run = elastic.join()
    cumbersome_model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3))
    model = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3))
    model, losses, scores = distillation(model, cumbersome_model, 4, train_loader, LocalParams(), test_loader)
    run.save(model, "distilled.pt")
