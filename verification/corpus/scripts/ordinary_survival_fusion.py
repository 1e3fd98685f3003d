"""`run_one_epoch(training=…)` for both phases, modality dropout, a disabled GradScaler, the best C-index, as a survival model's train.py."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic


class AverageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0.0
        self.count = 0

    def update(self, value, n=1):
        self.sum += float(value) * n
        self.count += n

    @property
    def avg(self):
        return self.sum / max(self.count, 1)


class Patients(Dataset):
    def __init__(self, size):
        self.ct, self.pathology = torch.randn(size, 6), torch.randn(size, 6)
        self.duration = torch.rand(size) * 10 + self.ct[:, 0]
        self.label = (self.duration < 5).float()

    def __len__(self):
        return len(self.ct)

    def __getitem__(self, i):
        presence = torch.ones(2)
        batch = {"ct": self.ct[i], "pathology": self.pathology[i], "presence_mask": presence}
        return {**batch, "label": self.label[i], "duration": self.duration[i]}


def apply_modality_dropout(batch, dropout_prob):
    ct = batch["ct"].clone()
    presence_mask = batch["presence_mask"].clone()
    apply_drop = torch.rand(ct.size(0)) < dropout_prob
    if torch.any(apply_drop):
        ct[apply_drop] = 0.0
        presence_mask[apply_drop, 0] = 0.0
    batch["ct"] = ct
    batch["presence_mask"] = presence_mask
    return batch


def concordance_index(risk, duration):
    concordant = permissible = 0.0
    for i in range(len(risk)):
        for j in range(i + 1, len(risk)):
            permissible += 1
            concordant += (risk[i] - risk[j]) * (duration[j] - duration[i]) > 0
    return concordant / permissible


class EviFus(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, batch):
        return torch.sigmoid(self.net(torch.cat([batch["ct"], batch["pathology"], batch["presence_mask"]], 1))).view(-1)


def run_one_epoch(model, dataloader, optimizer, scaler, training):
    model.train() if training else model.eval()
    loss_meter = AverageMeter()
    all_risk, all_duration = [], []
    if training:
        optimizer.zero_grad(set_to_none=True)
    for step, batch in enumerate(dataloader):
        if training:
            batch = apply_modality_dropout(batch, 0.3)
        with torch.set_grad_enabled(training):
            risk = model(batch)
            loss = F.binary_cross_entropy(risk, batch["label"])
            if training:
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
        loss_meter.update(loss.item(), batch["ct"].size(0))
        all_risk.append(risk.detach().cpu().numpy().reshape(-1))
        all_duration.append(batch["duration"].detach().cpu().numpy().reshape(-1))
    c_index = concordance_index(np.concatenate(all_risk), np.concatenate(all_duration))
    return {"loss": loss_meter.avg, "c_index": c_index}


def main():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    train_loader = DataLoader(Patients(128), batch_size=4, shuffle=True)
    val_loader = DataLoader(Patients(32), batch_size=8)
    run = elastic.join()
    model = EviFus()
    optimizer = AdamW(model.parameters(), lr=0.01)
    scheduler = LambdaLR(optimizer, lr_lambda=lambda epoch: 0.5 * (1.0 + np.cos(np.pi * epoch / 4)))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    best_val_cindex = -float("inf")
    best_epoch = -1
    epochs_without_improvement = 0
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
    for epoch in run.epochs(4):
        train_metrics = run_one_epoch(model, train_loader, optimizer, scaler, training=True)
        val_metrics = run_one_epoch(model, val_loader, optimizer, scaler, training=False)
        scheduler.step()
        print(f"Epoch [{epoch:03d}] | Train {train_metrics['loss']:.4f} | Val C-index {val_metrics['c_index']:.4f}")
        if val_metrics["c_index"] > best_val_cindex:
            best_val_cindex = val_metrics["c_index"]
            best_epoch = epoch
            epochs_without_improvement = 0
            run.save({"epoch": epoch, "model_state_dict": model.state_dict(), "best": best_val_cindex}, "best_model.pt")
        else:
            epochs_without_improvement += 1
        run.save({"epoch": epoch, "model_state_dict": model.state_dict(), "best": best_val_cindex}, "last_model.pt")
        if epochs_without_improvement >= 3:
            break
    print(f"best epoch {best_epoch}")


if __name__ == "__main__":
    main()
