"""Double precision, best metrics as NumPy arrays, an early-stopping counter in `train()`, as an energy disaggregation's trainer.py."""

from argparse import Namespace

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class Trainer:
    def __init__(self, args, model, train_loader, val_loader):
        self.args = args
        self.num_epochs = args.num_epochs
        self.model = model
        self.train_loader = train_loader
        self.val_loader = val_loader
        self.cutoff = torch.tensor([20.0], dtype=torch.float64)
        self.threshold = torch.tensor([10.0], dtype=torch.float64)
        self.optimizer = self._create_optimizer()
        if args.enable_lr_schedule:
            self.lr_scheduler = optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)
        self.kl = nn.KLDivLoss(reduction="batchmean")
        self.mse = nn.MSELoss(reduction="mean")
        self.margin = nn.SoftMarginLoss()
        self.model, self.optimizer, self.train_loader = run.prepare(self.model, self.optimizer, self.train_loader)

    def _create_optimizer(self):
        param_optimizer = list(self.model.named_parameters())
        groups = [
            {"params": [p for n, p in param_optimizer if "bias" not in n], "weight_decay": 0.01},
            {"params": [p for n, p in param_optimizer if "bias" in n], "weight_decay": 0.0},
        ]
        return optim.AdamW(groups, lr=self.args.lr)

    def train(self):
        val_f1 = []
        best_mae_err = np.array(999.0)
        best_f1 = np.array(0.0)
        early_stopping_patience = 3
        early_stopping_counter = 0
        for epoch in run.epochs(self.num_epochs):
            self.train_bert_one_epoch(epoch + 1)
            abs_err, f1 = self.validate()
            val_f1.append(f1.tolist())
            print(f"F1 {f1.mean()} MAE {abs_err.mean()}")
            if f1.mean() - abs_err.mean() > best_f1.mean() - best_mae_err.mean():
                best_f1 = f1
                best_mae_err = abs_err
                self._save_state_dict()
                early_stopping_counter = 0
            else:
                early_stopping_counter += 1
            if early_stopping_counter >= early_stopping_patience:
                print(f"Early stopping triggered after {epoch + 1} epochs.")
                break

    def train_bert_one_epoch(self, epoch):
        self.model.train()
        tqdm_dataloader = tqdm(self.train_loader)
        loss_values = []
        for batch_idx, batch in enumerate(tqdm_dataloader):
            seqs, labels_energy, status = batch
            self.optimizer.zero_grad()
            logits = self.model(seqs)
            labels = labels_energy / self.cutoff
            logits_status = self.compute_status(self.cutoff_energy(logits * self.cutoff))
            kl_loss = self.kl(torch.log(F.softmax(logits / 0.1, dim=-1) + 1e-9), F.softmax(labels / 0.1, dim=-1))
            margin_loss = self.margin((logits_status * 2 - 1).double(), (status * 2 - 1).double())
            total_loss = kl_loss + self.mse(logits, labels) + margin_loss
            total_loss.backward()
            self.optimizer.step()
            loss_values.append(total_loss.item())
            average_loss = np.mean(np.array(loss_values))
            tqdm_dataloader.set_description(f"Epoch {epoch}, loss {average_loss:.2f}")
        if self.args.enable_lr_schedule:
            self.lr_scheduler.step()

    def validate(self):
        self.model.eval()
        errors, scores = [], []
        with torch.no_grad():
            for seqs, labels_energy, status in self.val_loader:
                energy = self.cutoff_energy(self.model(seqs) * self.cutoff)
                errors.append((energy - labels_energy).abs().mean(0).numpy())
                scores.append((self.compute_status(energy) == status).double().mean(0).numpy())
        return np.mean(errors, axis=0), np.mean(scores, axis=0)

    def cutoff_energy(self, data):
        data = data.clone()
        data[data < 5] = 0
        return torch.min(data, self.cutoff)

    def compute_status(self, data):
        return (data >= self.threshold) * 1

    def _save_state_dict(self):
        run.save(self.model.state_dict(), "best_acc_model.pt")


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
seqs = torch.rand(160, 8)
energy = 20 * seqs.cumsum(1) / 8
data = seqs, energy, (energy >= 10) * 1
run = elastic.join()
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
train_loader = DataLoader(TensorDataset(*(x[:128] for x in data)), batch_size=4, shuffle=True)
val_loader = DataLoader(TensorDataset(*(x[128:] for x in data)), batch_size=8)
trainer = Trainer(Namespace(num_epochs=5, lr=0.01, enable_lr_schedule=True), model, train_loader, val_loader)
trainer.train()
run.save(model.state_dict(), "last.pt")
