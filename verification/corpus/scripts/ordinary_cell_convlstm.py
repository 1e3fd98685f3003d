"""A history dict that is saved, two best metrics, epochs without improvement, as a ConvLSTM segmentation's train.py."""

import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


class Config:
    seed = 42
    epochs = 5
    lr = 0.01
    lr_min = 1e-4
    val_interval = 1
    save_interval = 2
    early_stop_patience = 3


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def train_one_epoch(model, dataloader, criterion, optimizer):
    model.train()
    total_loss = 0
    loss_components = {"seg": 0, "temporal": 0}
    num_batches = 0
    for images, labels in dataloader:
        outputs = model(images)
        seg = criterion(outputs, labels)
        temporal = (outputs[:, 1:] - outputs[:, :-1]).abs().mean()
        loss = seg + 0.1 * temporal
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        total_loss += loss.item()
        loss_components["seg"] += seg.item()
        loss_components["temporal"] += temporal.item()
        num_batches += 1
    return {"loss": total_loss / num_batches, "seg": loss_components["seg"] / num_batches}


@torch.no_grad()
def evaluate_batch(model, dataloader):
    model.eval()
    ious, consistency = [], []
    for images, labels in dataloader:
        outputs = model(images)
        predicted = outputs > 0
        union = (predicted | (labels > 0)).sum().item()
        ious.append((predicted & (labels > 0)).sum().item() / max(1, union))
        consistency.append(1 / (1 + (outputs[:, 1:] - outputs[:, :-1]).abs().mean().item()))
    return {"iou": np.mean(ious), "iou_std": np.std(ious), "consistency": np.mean(consistency)}


def main():
    cfg = Config
    set_seed(cfg.seed)
    x = torch.randn(160, 6)
    y = (x.cumsum(1) > 0).float()
    train_loader = DataLoader(TensorDataset(x[:128], y[:128]), batch_size=4, shuffle=True)
    val_loader = DataLoader(TensorDataset(x[128:], y[128:]), batch_size=8)
    run = elastic.join()
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 6))
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.epochs, eta_min=cfg.lr_min)
    history = {"train_loss": [], "train_seg": [], "val_iou": [], "val_iou_std": [], "val_epochs": [], "lr": []}
    best_iou = 0
    best_consistency = 0
    epochs_without_improvement = 0
    start_time = time.time()
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
    for epoch in run.epochs(cfg.epochs):
        train_metrics = train_one_epoch(model, train_loader, criterion, optimizer)
        history["train_loss"].append(train_metrics["loss"])
        history["train_seg"].append(train_metrics["seg"])
        history["lr"].append(optimizer.param_groups[0]["lr"])
        scheduler.step()
        if epoch % cfg.val_interval == 0:
            val_metrics = evaluate_batch(model, val_loader)
            history["val_iou"].append(val_metrics["iou"])
            history["val_iou_std"].append(val_metrics["iou_std"])
            history["val_epochs"].append(epoch)
            print(f"Epoch {epoch}/{cfg.epochs} loss {train_metrics['loss']:.4f} IoU {val_metrics['iou']:.4f}")
            improved = False
            if val_metrics["iou"] > best_iou:
                best_iou = val_metrics["iou"]
                run.save({"epoch": epoch, "model_state_dict": model.state_dict(), "best_iou": best_iou}, "best_iou.pt")
                improved = True
            if val_metrics["consistency"] > best_consistency:
                best_consistency = val_metrics["consistency"]
                run.save({"epoch": epoch, "model_state_dict": model.state_dict()}, "best_consistency.pt")
                improved = True
            if improved:
                epochs_without_improvement = 0
            else:
                epochs_without_improvement += cfg.val_interval
            if epochs_without_improvement >= cfg.early_stop_patience:
                print(f"early stop: {epochs_without_improvement} epochs")
                break
        if epoch % cfg.save_interval == 0:
            run.save({"epoch": epoch, "model_state_dict": model.state_dict(), "history": history}, f"epoch{epoch}.pt")
    print(f"total {(time.time() - start_time) / 60:.1f} minutes, best IoU {best_iou:.4f}")
    run.save({"epoch": epoch, "model_state_dict": model.state_dict(), "history": history}, "final_model.pt")


if __name__ == "__main__":
    main()
