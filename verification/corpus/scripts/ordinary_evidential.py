"""A dataclass as Trainer with metrics, copied best weights and a loss annealed by the epoch, as an evidential classifier's trainer.py."""

from copy import deepcopy
from dataclasses import dataclass, field
from time import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm

import elasticd as elastic


@dataclass(kw_only=True)
class Loss:
    phases: list = field(default_factory=list)
    epochs: list = field(default_factory=list)
    losses: list = field(default_factory=list)

    def update(self, loss, phase, epoch):
        self.losses.append(loss)
        self.phases.append(phase)
        self.epochs.append(epoch)


@dataclass
class Metrics:
    losses: Loss = field(default_factory=Loss)


@dataclass(kw_only=True)
class EvidentialTrainer:
    model: nn.Module
    dataloaders: dict
    num_classes: int
    optimizer: torch.optim.Optimizer
    scheduler: object
    num_epochs: int = 4

    def __post_init__(self):
        self.metrics = Metrics()
        self.best_model_wts = deepcopy(self.model.state_dict())
        self.best_acc = 0.0
        self.epoch_loss = 0.0
        self.epoch_acc = 0.0

    def _get_loss(self, outputs, labels, epoch):
        y = F.one_hot(labels, self.num_classes).float()
        alpha = F.relu(outputs) + 1
        strength = alpha.sum(1, keepdim=True)
        likelihood = ((y - alpha / strength) ** 2 + alpha * (strength - alpha) / (strength**2 * (strength + 1))).sum(1)
        annealing = min(1.0, epoch / 10)
        return (likelihood + annealing * ((alpha - 1) * (1 - y)).sum(1)).mean()

    def _unified_loop(self, phase, epoch):
        running_loss = 0.0
        running_corrects = 0.0
        count = 0
        self.model.train(phase == "train")
        for _, (inputs, labels) in enumerate(self.dataloaders[phase]):
            self.optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = self.model(inputs)
                _, preds = torch.max(outputs, dim=1)
                loss = self._get_loss(outputs, labels, epoch)
            if phase == "train":
                loss.backward()
                self.optimizer.step()
            running_loss += loss.item() * inputs.size(0)
            running_corrects += torch.sum(preds == labels).item()
            count += inputs.size(0)
        if self.scheduler is not None and phase == "train":
            self.scheduler.step()
        self.epoch_loss = running_loss / max(1, count)
        self.epoch_acc = running_corrects / max(1, count)
        self.metrics.losses.update(self.epoch_loss, phase, epoch)
        print(f"{phase.capitalize()} loss: {self.epoch_loss:.4f} acc: {self.epoch_acc:.4f}")
        if phase == "val" and self.epoch_acc > self.best_acc:
            self.best_acc = self.epoch_acc
            self.best_model_wts = deepcopy(self.model.state_dict())

    def train(self):
        start = time()
        for epoch in tqdm(run.epochs(self.num_epochs)):
            self._unified_loop("train", epoch)
            self._unified_loop("val", epoch)
        print(f"Training Complete in {time() - start:.0f}s, best val Acc: {self.best_acc:.4f}")
        self.model.load_state_dict(self.best_model_wts)
        return self.model, self.metrics


torch.manual_seed(0)
x = torch.randn(192, 8)
y = (x[:, :3] + torch.randn(192, 3)).argmax(1)
run = elastic.join()
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
train_set = torch.utils.data.TensorDataset(x[:128], y[:128])
val = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[128:], y[128:]), batch_size=16)
net, optimizer, train = run.prepare(net, optimizer, train_set, batch_size=4)
trainer = EvidentialTrainer(
    model=net, dataloaders={"train": train, "val": val}, num_classes=3, optimizer=optimizer, scheduler=scheduler
)
net, metrics = trainer.train()
run.save(net.state_dict(), "best.pt")
