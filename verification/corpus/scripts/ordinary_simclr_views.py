"""SimCLR with `n_iter`, the best epoch by the training loss, a scheduler that waits for warm-up epochs, as a fork of SimCLR's simclr.py."""

import logging
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

import elasticd as elastic

torch.manual_seed(0)


class Views(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randn(128, 10)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"imgs": [self.images[index] + 0.2 * torch.randn(10) for _ in range(2)]}


class SimCLR:
    def __init__(self, *args, **kwargs):
        self.args = kwargs["args"]
        self.model = kwargs["model"]
        self.optimizer = kwargs["optimizer"]
        self.scheduler = kwargs["scheduler"]
        self.logged = []
        self.criterion = torch.nn.CrossEntropyLoss()

    def info_nce_loss(self, features):
        labels = torch.cat([torch.arange(self.args.batch_size) for i in range(self.args.n_views)], dim=0)
        labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
        features = F.normalize(features, dim=1)
        similarity_matrix = torch.matmul(features, features.T)
        mask = torch.eye(labels.shape[0], dtype=torch.bool)
        labels = labels[~mask].view(labels.shape[0], -1)
        similarity_matrix = similarity_matrix[~mask].view(similarity_matrix.shape[0], -1)
        positives = similarity_matrix[labels.bool()].view(labels.shape[0], -1)
        negatives = similarity_matrix[~labels.bool()].view(similarity_matrix.shape[0], -1)
        logits = torch.cat([positives, negatives], dim=1)
        return logits / self.args.temperature, torch.zeros(logits.shape[0], dtype=torch.long)

    def train(self, train_loader):
        length = len(train_loader)
        best_loss = np.inf
        scaler = torch.amp.GradScaler("cpu", enabled=self.args.fp16_precision)
        n_iter = 0
        logging.info(f"Start SimCLR training for {self.args.epochs} epochs.")
        for epoch_counter in run.epochs(self.args.epochs):
            epoch_loss = 0
            for idx, data in tqdm(enumerate(train_loader)):
                images = torch.cat(data["imgs"], dim=0)
                with torch.autocast("cpu", enabled=self.args.fp16_precision):
                    features = self.model(images)
                    logits, labels = self.info_nce_loss(features)
                    loss = self.criterion(logits, labels)
                self.optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(self.optimizer)
                scaler.update()
                self.logged.append({"loss": loss.item(), "step": (epoch_counter * length) + idx})
                epoch_loss += loss.item()
                n_iter += 1
            if epoch_loss < best_loss:
                best_loss = epoch_loss
                self.save_checkpoint(epoch_counter, "checkpoint.pt")
            if epoch_counter >= 2:
                self.scheduler.step()
        logging.info("Training has finished.")
        self.save_checkpoint(self.args.epochs, f"checkpoint_{self.args.epochs:04d}.pt")

    def save_checkpoint(self, epoch, filename):
        state = {"epoch": epoch, "state_dict": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        run.save(state, filename)


args = SimpleNamespace(batch_size=4, n_views=2, temperature=0.07, fp16_precision=False, epochs=4)
run = elastic.join()
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 8))
optimizer = torch.optim.Adam(model.parameters(), 0.003, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8, eta_min=0, last_epoch=-1)
model, optimizer, loader = run.prepare(model, optimizer, Views(), batch_size=args.batch_size, drop_last=True)
simclr = SimCLR(model=model, optimizer=optimizer, scheduler=scheduler, args=args)
simclr.train(loader)
