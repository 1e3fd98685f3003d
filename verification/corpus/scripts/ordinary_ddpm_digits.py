"""Diffusion with random time steps, a checkpoint of each epoch with its mean loss, as a DDPM's train.py for MNIST."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
batch_size = 4
epochs = 4
learning_rate = 1e-3
torch.manual_seed(0)


class ddpmScheduler:
    def __init__(self, T, device):
        self.T = T
        self.beta = torch.linspace(1e-4, 0.02, T, device=device)
        self.alpha_bar = torch.cumprod(1 - self.beta, 0)


def forward_scheduler(x0, t, scheduler):
    epsilon = torch.randn_like(x0)
    alpha_bar = scheduler.alpha_bar[t].view(-1, 1)
    return alpha_bar.sqrt() * x0 + (1 - alpha_bar).sqrt() * epsilon, epsilon


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(100, 8), nn.Sequential(nn.Linear(16, 24), nn.SiLU(), nn.Linear(24, 8))

    def forward(self, x, t):
        return self.net(torch.cat([x, self.time(t)], 1))


dataset = TensorDataset(torch.randn(128, 8).sign() + 0.1 * torch.randn(128, 8), torch.zeros(128))
dataloader = DataLoader(dataset, batch_size=batch_size, shuffle=True)
run = elastic.join()
scheduler = ddpmScheduler(T=100, device=device)
model = Noise().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
model.train()
model, optimizer, dataloader = run.prepare(model, optimizer, dataloader)

for epoch in run.epochs(epochs):
    epoch_loss = 0.0
    for batch_idx, (x0, _) in enumerate(dataloader):
        x0 = x0.to(device, non_blocking=True)
        t = torch.randint(low=0, high=scheduler.T, size=(x0.shape[0],), device=device, dtype=torch.long)
        xt, epsilon = forward_scheduler(x0, t, scheduler)
        epsilon_pred = model(xt, t)
        loss = F.mse_loss(epsilon_pred, epsilon)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
        if batch_idx % 100 == 0:
            print(f"Epoch [{epoch + 1}/{epochs}] Batch [{batch_idx}/{len(dataloader)}] Loss: {loss.item():.6f}")
    average_loss = epoch_loss / len(dataloader)
    print(f"Epoch {epoch + 1} completed, average loss: {average_loss:.6f}")
    run.save(
        {
            "epoch": epoch + 1,
            "model_state_dict": model.state_dict(),
            "optimizer_state_dict": optimizer.state_dict(),
            "loss": average_loss,
        },
        f"ddpm_mnist_epoch_{epoch + 1}.pt",
    )
print("Training complete.")
