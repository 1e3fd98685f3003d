"""A least-squares GAN whose adversarial weight begins at an epoch, two cosine schedulers, the best by an error, as a pose generator's train_gan.py."""

import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class AccumLoss:
    def __init__(self):
        self.sum, self.count, self.avg = 0.0, 0, 0.0

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n
        self.avg = self.sum / self.count


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.pose = nn.Embedding(8, 6), nn.Linear(6, 12)

    def forward(self, pose, text):
        generated = self.pose(torch.tanh(self.text(text)))
        return generated, ((generated - pose) ** 2).mean()


def train_gan_epoch(dataloader, generator, discriminator, opt_G, opt_D, adv_weight=0.1):
    loss_log = {"g_total": AccumLoss(), "g_recon": AccumLoss(), "d_total": AccumLoss()}
    generator.train()
    discriminator.train()
    pbar = tqdm(dataloader, desc="Training")
    for pose_gt, text_input in pbar:
        opt_D.zero_grad()
        d_loss_real = torch.mean((discriminator(pose_gt) - 1) ** 2)
        with torch.no_grad():
            fake_pose, _ = generator(pose_gt, text_input)
        d_loss_fake = torch.mean(discriminator(fake_pose.detach()) ** 2)
        d_loss = (d_loss_real + d_loss_fake) * 0.5
        d_loss.backward()
        opt_D.step()

        opt_G.zero_grad()
        fake_pose, recon_loss = generator(pose_gt, text_input)
        g_adv_loss = torch.mean((discriminator(fake_pose) - 1) ** 2)
        total_g_loss = recon_loss + (adv_weight * g_adv_loss)
        total_g_loss.backward()
        opt_G.step()

        loss_log["g_total"].update(total_g_loss.item())
        loss_log["g_recon"].update(recon_loss.item())
        loss_log["d_total"].update(d_loss.item())
        pbar.set_postfix({"G_Recon": f"{recon_loss.item():.4f}", "G_Adv": f"{g_adv_loss.item():.4f}"})
    return loss_log


@torch.no_grad()
def evaluate(dataloader, generator):
    generator.eval()
    errors = []
    for pose_gt, text_input in dataloader:
        pred_pose, _ = generator(pose_gt, text_input)
        errors.append(torch.norm(pred_pose - pose_gt, dim=-1).mean().item())
    return np.mean(errors) * 1000


if __name__ == "__main__":
    random.seed(1126)
    torch.manual_seed(1126)
    np.random.seed(1126)
    text = torch.randint(8, (160,))
    pose = torch.sin(text.float().unsqueeze(1) * torch.linspace(0, 3, 12)) + 0.1 * torch.randn(160, 12)
    train_loader = DataLoader(TensorDataset(pose[:128], text[:128]), batch_size=4, shuffle=True)
    test_loader = DataLoader(TensorDataset(pose[128:], text[128:]), batch_size=8, shuffle=False)
    run = elastic.join()
    generator = Generator()
    discriminator = nn.Sequential(nn.Linear(12, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    epochs = 4
    optimizer_G = optim.AdamW(filter(lambda p: p.requires_grad, generator.parameters()), lr=0.01, weight_decay=0.01)
    optimizer_D = optim.AdamW(discriminator.parameters(), lr=0.01, weight_decay=0.01)
    scheduler_G = CosineAnnealingLR(optimizer_G, T_max=epochs, eta_min=1e-6)
    scheduler_D = CosineAnnealingLR(optimizer_D, T_max=epochs, eta_min=1e-6)
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    both, (optimizer_G, optimizer_D), train_loader = run.prepare(both, [optimizer_G, optimizer_D], train_loader)
    best_mpjpe = float("inf")
    for epoch in run.epochs(epochs):
        adv_weight = 0.01 if epoch > 1 else 0.0
        print(f"Epoch {epoch}/{epochs} | Adv Weight: {adv_weight} | LR {scheduler_G.get_last_lr()[0]:.8f}")
        train_losses = train_gan_epoch(train_loader, generator, discriminator, optimizer_G, optimizer_D, adv_weight)
        scheduler_G.step()
        scheduler_D.step()
        print(f"TRAIN | G_Total: {train_losses['g_total'].avg:.4f} | D: {train_losses['d_total'].avg:.4f}")
        mpjpe_val = evaluate(test_loader, generator)
        if mpjpe_val < best_mpjpe:
            best_mpjpe = mpjpe_val
            run.save({"generator": generator.state_dict(), "discriminator": discriminator.state_dict()}, "best_gan.pt")
            print(f"Saved best model (MPJPE: {best_mpjpe:.2f})")
