"""`best_state = model.state_dict().copy()`, patience and ReduceLROnPlateau, as a periodic series classifier's trainer.py."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


class cfg:
    BATCH_SIZE, EPOCHS, EARLY_STOPPING = 4, 5, 3
    LR, WEIGHT_DECAY, VAL_RATIO = 0.01, 1e-4, 0.2


def train_epoch(model, loader, criterion, optimizer):
    model.train()
    total_loss = 0.0
    for X, y in loader:
        optimizer.zero_grad()
        out = model(X)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        total_loss += loss.item() * X.size(0)
    return total_loss / 128


def eval_epoch(model, loader):
    model.eval()
    y_pred, y_true = [], []
    with torch.no_grad():
        for X, y in loader:
            y_pred.extend(model(X).argmax(dim=1).cpu().numpy())
            y_true.extend(y.numpy())
    return np.array(y_true), np.array(y_pred)


def main():
    np.random.seed(0)
    X_train = np.random.randn(160, 12).astype(np.float32)
    y_train = (X_train.sum(1) + np.random.randn(160) > 0).astype(np.int64)
    n_total = len(X_train)
    n_val = int(n_total * cfg.VAL_RATIO)
    indices = np.random.permutation(n_total)
    train_idx, val_idx = indices[n_val:], indices[:n_val]

    def get_loader(X, y, shuffle):
        return DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(y)), cfg.BATCH_SIZE, shuffle=shuffle)

    train_loader = get_loader(X_train[train_idx], y_train[train_idx], shuffle=True)
    val_loader = get_loader(X_train[val_idx], y_train[val_idx], shuffle=False)
    run = elastic.join()
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))
    print(f"Model parameters: {sum(p.numel() for p in model.parameters()):,}")
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.Adam(model.parameters(), lr=cfg.LR, weight_decay=cfg.WEIGHT_DECAY)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.5, patience=0)
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
    best_val_acc = 0.0
    patience_counter = 0
    best_state = None
    for epoch in run.epochs(cfg.EPOCHS):
        train_loss = train_epoch(model, train_loader, criterion, optimizer)
        y_true, y_pred = eval_epoch(model, val_loader)
        val_acc = (y_true == y_pred).mean()
        scheduler.step(val_acc)
        if val_acc > best_val_acc:
            best_val_acc = val_acc
            patience_counter = 0
            best_state = model.state_dict().copy()
        else:
            patience_counter += 1
        if (epoch + 1) % 10 == 0 or patience_counter == 0:
            print(f"Epoch {epoch + 1:03d} | Loss: {train_loss:.4f} | Val Acc: {val_acc:.4f}")
        if patience_counter >= cfg.EARLY_STOPPING:
            print(f"Early stopping triggered at epoch {epoch + 1}")
            break
    if best_state is not None:
        model.load_state_dict(best_state)
    y_true, y_pred = eval_epoch(model, val_loader)
    print(f"Accuracy : {(y_true == y_pred).mean():.4f}")
    run.save(model.state_dict(), "baseline.pt")


if __name__ == "__main__":
    main()
