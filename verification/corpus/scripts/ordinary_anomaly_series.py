"""Losses of three kinds in a dict, the criterion made in each batch, a validation with an F1 score, as a time series detector's train.py."""

import time

import numpy as np
import torch
import torch.nn as nn
from sklearn.metrics import f1_score
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class MATTS(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)
        self.anomaly, self.classes = nn.Linear(8, 1), nn.Linear(8, 2)
        self.anomaly_threshold = 0.5

    def forward(self, data):
        hidden, last = self.encoder(data)
        return self.decoder(hidden), torch.sigmoid(self.anomaly(last[0])), self.classes(last[0])


def train_epoch(model, train_loader, optimizer, config, abnormal_class_weights=None):
    model.train()
    total_loss = 0
    epoch_start_time = time.time()
    loss_tracking = {"recon_loss": 0, "anomaly_loss": 0, "class_loss": 0}
    with tqdm(train_loader, desc="Training") as pbar:
        for batch_idx, (data, target) in enumerate(pbar):
            optimizer.zero_grad()
            decoded, anomaly_score, class_score = model(data)
            recon_loss = nn.MSELoss()(decoded, data) * config.get("recon_weight", 1.0)
            loss = recon_loss
            anomaly_loss = nn.BCELoss()(anomaly_score.flatten(), (target > 0).float()) * config.get("anomaly_weight", 10.0)
            loss += anomaly_loss
            anomaly_mask = target > 0
            if anomaly_mask.any():
                criterion = nn.CrossEntropyLoss(weight=abnormal_class_weights)
                class_loss_val = criterion(class_score[anomaly_mask], target[anomaly_mask] - 1)
                loss += class_loss_val
                loss_tracking["class_loss"] += class_loss_val.item()
            loss_tracking["recon_loss"] += recon_loss.item()
            loss_tracking["anomaly_loss"] += anomaly_loss.item()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            total_loss += loss.item()
            pbar.set_postfix({"Loss": f"{loss.item():.4f}", "Recon": f"{recon_loss.item():.4f}"})
    num_batches = len(train_loader)
    means = {name: value / num_batches for name, value in loss_tracking.items()}
    return {"total_loss": total_loss / num_batches, "epoch_time": time.time() - epoch_start_time, **means}


def validate(model, val_loader):
    model.eval()
    all_preds, all_targets = [], []
    with torch.no_grad():
        for data, target in val_loader:
            decoded, anomaly_score, class_score = model(data)
            anomaly_pred = (anomaly_score.squeeze(-1) > model.anomaly_threshold).long()
            final_pred = torch.where(anomaly_pred == 1, class_score.argmax(1) + 1, 0)
            all_preds.extend(final_pred.cpu().numpy())
            all_targets.extend(target.cpu().numpy())
    return f1_score(np.array(all_targets), np.array(all_preds), average="macro")


torch.manual_seed(0)
target = torch.randint(3, (160,))
series = torch.sin(torch.linspace(0, 9, 10)).view(1, 10, 1) + target.view(-1, 1, 1) * torch.rand(160, 10, 1)
train_loader = DataLoader(TensorDataset(series[:128], target[:128]), batch_size=4, shuffle=True)
val_loader = DataLoader(TensorDataset(series[128:], target[128:]), batch_size=8)
run = elastic.join()
model = MATTS()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
config = {"anomaly_weight": 2.0}
weights = torch.tensor([0.5, 1.5])
model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
for epoch in run.epochs(4):
    losses = train_epoch(model, train_loader, optimizer, config, weights)
    print(f"epoch {epoch}: loss {losses['total_loss']:.4f}, F1 {validate(model, val_loader):.4f}")
run.save(model.state_dict(), "matts.pt")
