"""`train_epoch` and `eval_epoch`, warm restarts by epoch, the best with its feature statistics, early stopping, as a sign language's train_lstm.py."""

import time

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

BATCH_SIZE, EPOCHS, LR, WEIGHT_DECAY, DROPOUT, PATIENCE = 4, 5, 1e-2, 1e-3, 0.3, 3

rng = np.random.default_rng(0)
X_raw = rng.normal(size=(160, 6, 4)).astype(np.float32)
labels = (X_raw.mean((1, 2)) > 0).astype(np.int64)
delta = np.zeros_like(X_raw)
delta[:, 1:, :] = X_raw[:, 1:, :] - X_raw[:, :-1, :]
X_raw = np.concatenate([X_raw, delta], axis=2)
feat_mean = X_raw[:128].reshape(-1, 8).mean(axis=0).astype(np.float32)
feat_std = X_raw[:128].reshape(-1, 8).std(axis=0).astype(np.float32) + 1e-8
X, y = torch.FloatTensor((X_raw - feat_mean) / feat_std), torch.LongTensor(labels)
train_loader = DataLoader(TensorDataset(X[:128], y[:128]), batch_size=BATCH_SIZE, shuffle=True)
test_loader = DataLoader(TensorDataset(X[128:], y[128:]), batch_size=BATCH_SIZE, shuffle=False)


class SignLanguageBiLSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.input_proj = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU())
        self.lstm = nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.attention, self.dropout = nn.Linear(12, 1), nn.Dropout(DROPOUT)
        self.classifier = nn.Linear(12, 2)

    def forward(self, x):
        lstm_out, _ = self.lstm(self.input_proj(x))
        lstm_out = self.dropout(lstm_out)
        attn_weights = torch.softmax(self.attention(lstm_out), dim=1)
        return self.classifier((attn_weights * lstm_out).sum(dim=1))


run = elastic.join()
model = SignLanguageBiLSTM()
criterion = nn.CrossEntropyLoss(label_smoothing=0.15)
optimizer = optim.AdamW(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
scheduler = optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=2, T_mult=2, eta_min=1e-5)
model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)


def train_epoch(model, loader):
    model.train()
    total_loss, total_correct, total = 0.0, 0, 0
    for X_b, y_b in loader:
        optimizer.zero_grad(set_to_none=True)
        logits = model(X_b)
        loss = criterion(logits, y_b)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        total_loss += loss.item() * len(y_b)
        total_correct += (logits.argmax(1) == y_b).sum().item()
        total += len(y_b)
    return total_loss / total, total_correct / total


@torch.no_grad()
def eval_epoch(model, loader):
    model.eval()
    total_loss, total_correct, total = 0.0, 0, 0
    for X_b, y_b in loader:
        logits = model(X_b)
        total_loss += criterion(logits, y_b).item() * len(y_b)
        total_correct += (logits.argmax(1) == y_b).sum().item()
        total += len(y_b)
    return total_loss / total, total_correct / total


best_val_acc = 0.0
best_epoch = 0
patience_cnt = 0
history = []
for epoch in run.epochs(EPOCHS):
    t0 = time.time()
    train_loss, train_acc = train_epoch(model, train_loader)
    val_loss, val_acc = eval_epoch(model, test_loader)
    scheduler.step()
    history.append(dict(epoch=epoch, train_acc=train_acc, val_acc=val_acc, gap=train_acc - val_acc))
    marker = ""
    if val_acc > best_val_acc:
        best_val_acc = val_acc
        best_epoch = epoch
        patience_cnt = 0
        checkpoint = {"epoch": epoch, "model_state_dict": model.state_dict(), "val_acc": val_acc}
        run.save({**checkpoint, "feat_mean": feat_mean, "feat_std": feat_std}, "lstm_best.pt")
        marker = " <- best"
    else:
        patience_cnt += 1
    print(f"Epoch {epoch:3d}/{EPOCHS} | Train {train_acc * 100:.2f}% | Val {val_acc * 100:.2f}% {time.time() - t0}{marker}")
    if patience_cnt >= PATIENCE:
        print(f"Early Stopping (Epoch {epoch})")
        break
best_row = next(r for r in history if r["epoch"] == best_epoch)
print(f"train accuracy {best_row['train_acc'] * 100:.2f}%, gap {best_row['gap'] * 100:.2f}%")
