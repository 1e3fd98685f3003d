"""A Trainer's `iterate(epoch, phase)` for both phases, accumulation, meters and the best metric, as an FPN segmentation's trainer.py."""

import logging
import time

import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class Meter:
    def __init__(self):
        self.reset_dicts()
        self.tb_log = []

    def reset_dicts(self):
        self.dice_scores = {"train": [], "val": []}
        self.iou_scores = {"train": [], "val": []}

    def update(self, phase, targets, outputs):
        predicted = outputs > 0
        inter = (predicted & (targets > 0)).sum().item()
        total = predicted.sum().item() + targets.sum().item()
        self.dice_scores[phase].append(2 * inter / max(1, total))
        self.iou_scores[phase].append(inter / max(1, total - inter))

    def epoch_log(self, phase):
        dice, iou = self.dice_scores[phase], self.iou_scores[phase]
        return {"dice_all": sum(dice) / len(dice)}, sum(iou) / len(iou)


class Trainer:
    def __init__(self, model, dataloaders, optimizer, lr, num_epochs):
        self.accumulation_steps = 1
        self.key_metric = "iou"
        self.num_epochs = num_epochs
        self.best_metric = float("inf")
        self.phases = ["train", "val"]
        self.criterion = nn.BCEWithLogitsLoss()
        optimizer = optimizer(model.parameters(), lr=lr)
        self.net, self.optimizer, train = run.prepare(model, optimizer, dataloaders["train"])
        self.dataloaders = {"train": train, "val": dataloaders["val"]}
        self.scheduler = ReduceLROnPlateau(self.optimizer, mode="min", patience=0)
        self.losses = {phase: [] for phase in self.phases}
        self.iou_scores = {phase: [] for phase in self.phases}
        self.meter = Meter()

    def forward(self, images, targets):
        outputs = self.net(images)
        return self.criterion(outputs, targets), outputs

    def iterate(self, epoch, phase):
        self.meter.reset_dicts()
        logging.info(f"Starting epoch: {epoch} | phase: {phase} | time: {time.strftime('%H:%M:%S')}")
        self.net.train(phase == "train")
        dataloader = self.dataloaders[phase]
        running_loss = 0.0
        total_batches = len(dataloader)
        self.optimizer.zero_grad()
        tk0 = tqdm(dataloader, total=total_batches)
        for itr, batch in enumerate(tk0):
            images, targets = batch
            loss, outputs = self.forward(images, targets)
            loss = loss / self.accumulation_steps
            if phase == "train":
                loss.backward()
                if (itr + 1) % self.accumulation_steps == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            running_loss += loss.item()
            self.meter.update(phase, targets, outputs.detach().cpu())
            running_loss_tick = (running_loss * self.accumulation_steps) / (itr + 1)
            self.meter.tb_log.append((f"{phase}_loss", running_loss_tick, itr + total_batches * epoch))
            tk0.set_postfix(loss=(running_loss_tick))
        last_itr = itr + total_batches * epoch
        epoch_loss = (running_loss * self.accumulation_steps) / total_batches
        dice, iou = self.meter.epoch_log(phase)
        self.losses[phase].append(epoch_loss)
        self.iou_scores[phase].append(iou)
        return epoch_loss, dice, iou, last_itr

    def start(self):
        for epoch in run.epochs(self.num_epochs):
            _, __, ___, last_itr = self.iterate(epoch, "train")
            self.meter.tb_log.append(("learning_rate", self.optimizer.param_groups[0]["lr"], last_itr))
            state = {
                "epoch": epoch,
                "best_metric": self.best_metric,
                "state_dict": self.net.state_dict(),
                "optimizer": self.optimizer.state_dict(),
            }
            with torch.no_grad():
                val_loss, val_dice, val_iou, __ = self.iterate(epoch, "val")
                key_metrics = {"loss": val_loss, "dice": -val_dice["dice_all"], "iou": -val_iou}
                self.scheduler.step(val_loss)
            is_last_epoch = epoch == (self.num_epochs - 1)
            if key_metrics[self.key_metric] < self.best_metric or is_last_epoch:
                logging.info("******** Saving state ********")
                state["val_IoU"] = val_iou
                state["val_loss"] = val_loss
                state["best_metric"] = self.best_metric = key_metrics[self.key_metric]
                run.save(state, f"{'last_model' if is_last_epoch else 'best_model'}.pt")


torch.manual_seed(0)
images = torch.randn(160, 1, 6, 6)
masks = (nn.functional.avg_pool2d(images, 3, 1, 1) > 0).float()
loaders = {
    "train": DataLoader(TensorDataset(images[:128], masks[:128]), batch_size=4, shuffle=True),
    "val": DataLoader(TensorDataset(images[128:], masks[128:]), batch_size=8),
}
run = elastic.join()
model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 1, 3, padding=1))
trainer = Trainer(model, loaders, torch.optim.Adam, lr=0.01, num_epochs=5)
trainer.start()
