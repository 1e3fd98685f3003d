"""One function for both phases that takes and returns `total_step`, `lr` and the best metrics, as a change detection's train.py."""

import random

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


class ph:
    epochs = 5
    batch_size = 4
    learning_rate = 0.01
    warm_up_step = 10
    patience = 1
    factor = 0.5


def train_val_test(
    mode, dataloader, net, optimizer, total_step, lr, criterion, epoch, warmup_lr=None, best_metrics=None, non_improved_epoch=None
):
    epoch_loss = 0
    right = count = 0
    net.train(mode == "train")
    for i, (batch_img1, batch_img2, labels) in enumerate(dataloader):
        preds = net(torch.cat([batch_img1, batch_img2], 1))
        loss = criterion(preds, labels)
        if mode == "train":
            optimizer.zero_grad()
            if total_step < ph.warm_up_step:
                for g in optimizer.param_groups:
                    g["lr"] = warmup_lr[total_step]
            loss.backward()
            optimizer.step()
            total_step += 1
        epoch_loss += loss.item()
        right += ((preds > 0).float() == labels).sum().item()
        count += labels.numel()
    print(f"{mode} epoch {epoch}: loss {epoch_loss:.4f}, accuracy {right / count:.4f}")
    if mode == "train":
        return net, optimizer, total_step, lr
    if right / count > best_metrics["best_f1score"]:
        non_improved_epoch = 0
        best_metrics["best_f1score"] = right / count
        run.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, "best_f1score.pt")
    else:
        non_improved_epoch += 1
        if non_improved_epoch == ph.patience:
            lr *= ph.factor
            for g in optimizer.param_groups:
                g["lr"] = lr
            non_improved_epoch = 0
    return net, optimizer, total_step, lr, best_metrics, non_improved_epoch


def train_net():
    first = torch.randn(160, 6)
    changed = (torch.rand(160, 6) > 0.7).float()
    data = first, first + changed * 2 + 0.5 * torch.randn(160, 6), changed
    train_loader = DataLoader(TensorDataset(*(x[:128] for x in data)), shuffle=True, batch_size=ph.batch_size)
    val_loader = DataLoader(TensorDataset(*(x[128:] for x in data)), batch_size=ph.batch_size * 2)
    net = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
    optimizer = optim.AdamW(net.parameters(), lr=ph.learning_rate, weight_decay=1e-3)
    warmup_lr = np.arange(1e-7, ph.learning_rate, (ph.learning_rate - 1e-7) / ph.warm_up_step)
    total_step = 0
    lr = ph.learning_rate
    criterion = nn.BCEWithLogitsLoss()
    best_metrics = dict.fromkeys(["best_f1score", "lowest loss"], 0)
    non_improved_epoch = 0
    net, optimizer, train_loader = run.prepare(net, optimizer, train_loader)
    for epoch in run.epochs(ph.epochs):
        net, optimizer, total_step, lr = train_val_test(
            "train", train_loader, net, optimizer, total_step, lr, criterion, epoch, warmup_lr=warmup_lr
        )
        with torch.no_grad():
            net, optimizer, total_step, lr, best_metrics, non_improved_epoch = train_val_test(
                "val", val_loader, net, optimizer, total_step, lr, criterion, epoch,
                best_metrics=best_metrics, non_improved_epoch=non_improved_epoch,
            )
    run.save(net.state_dict(), "last.pt")


if __name__ == "__main__":
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    run = elastic.join()
    train_net()
