"""`global_step = epoch * train_epoch_size`, a temperature and three rates computed from it, the best model, as STEVE's train.py."""

import math

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Adam
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


def cosine_anneal(step, start_value, final_value, start_step, final_step):
    if step >= final_step:
        return final_value
    progress = (step - start_step) / (final_step - start_step)
    return 0.5 * (start_value - final_value) * math.cos(progress * math.pi) + 0.5 * (start_value + final_value)


def linear_warmup(step, start_value, final_value, start_step, final_step):
    if step >= final_step:
        return final_value
    return start_value + (final_value - start_value) * (step + 1 - start_step) / (final_step - start_step)


class STEVE(nn.Module):
    def __init__(self):
        super().__init__()
        self.dvae, self.steve_encoder, self.steve_decoder = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 8)

    def forward(self, video, tau):
        soft = nn.functional.gumbel_softmax(self.dvae(video), tau)
        recon = self.steve_decoder(torch.relu(self.steve_encoder(soft)))
        return recon, (soft * soft).mean(), ((recon - video) ** 2).mean()


torch.manual_seed(0)
video = torch.randn(160, 8)
train_loader = DataLoader(TensorDataset(video[:128]), batch_size=4, shuffle=True, drop_last=True)
val_loader = DataLoader(TensorDataset(video[128:]), batch_size=4, drop_last=True)
run = elastic.join()
model = STEVE()
optimizer = Adam(
    [
        {"params": (x[1] for x in model.named_parameters() if "dvae" in x[0]), "lr": 0.003},
        {"params": (x[1] for x in model.named_parameters() if "steve_encoder" in x[0]), "lr": 0.0},
        {"params": (x[1] for x in model.named_parameters() if "steve_decoder" in x[0]), "lr": 0.0},
    ]
)
model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
train_epoch_size = len(train_loader)
val_epoch_size = len(val_loader)
log_interval = max(train_epoch_size // 5, 1)
best_val_loss = math.inf
best_epoch = 0
steps = 200000
stop_signal = False
for epoch in run.epochs(4):
    model.train()
    global_step = epoch * train_epoch_size
    if stop_signal:
        break
    for batch, (video,) in enumerate(train_loader):
        global_step += 1
        if global_step > steps:
            stop_signal = True
            break
        tau = cosine_anneal(global_step, 1.0, 0.1, 0, 30)
        lr_warmup_factor = linear_warmup(global_step, 0.0, 1.0, 0.0, 10)
        lr_decay_factor = math.exp(global_step / 50 * math.log(0.5))
        optimizer.param_groups[0]["lr"] = 0.003
        optimizer.param_groups[1]["lr"] = lr_decay_factor * lr_warmup_factor * 0.01
        optimizer.param_groups[2]["lr"] = lr_decay_factor * lr_warmup_factor * 0.03
        optimizer.zero_grad()
        recon, cross_entropy, mse = model(video, tau)
        loss = mse + cross_entropy
        loss.backward()
        clip_grad_norm_(model.parameters(), 0.05, "inf")
        optimizer.step()
        with torch.no_grad():
            if batch % log_interval == 0:
                print(f"Train Epoch: {epoch + 1:3} [{batch:5}/{train_epoch_size:5}] Loss: {loss.item():F}")
    with torch.no_grad():
        model.eval()
        val_cross_entropy = 0.0
        val_mse = 0.0
        for batch, (video,) in enumerate(val_loader):
            recon, cross_entropy, mse = model(video, tau)
            val_cross_entropy += cross_entropy.item()
            val_mse += mse.item()
        val_loss = (val_mse + val_cross_entropy) / val_epoch_size
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            best_epoch = epoch + 1
            run.save(model.state_dict(), "best_model.pt")
        checkpoint = {
            "epoch": epoch + 1,
            "best_val_loss": best_val_loss,
            "best_epoch": best_epoch,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        run.save(checkpoint, "checkpoint.pt")
        print(f"====> Best Loss = {best_val_loss:F} @ Epoch {best_epoch}")
