"""ReduceLROnPlateau on the last validation batch's error, and a test behind the loop, as an interferogram denoiser's train.py."""

import torch
import torch.nn as nn
import torch.optim as optim
import torch.optim.lr_scheduler as scheduler
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


def calculate_snr(output, target):
    noise = output - target
    noise_power = torch.mean(noise.pow(2), dim=1)
    power_noise = torch.where(noise_power == 0, torch.tensor(1e-8), noise_power)
    return (10 * torch.log(torch.mean(target.pow(2), dim=1) / power_noise)).mean().item()


def loader(size, shuffle):
    clean = torch.sin(torch.linspace(0, 6, 16) + torch.rand(size, 1))
    return DataLoader(TensorDataset(clean + 0.3 * torch.randn(size, 16), clean), batch_size=4, shuffle=shuffle)


if __name__ == "__main__":
    torch.manual_seed(0)
    TrainLoader, ValLoader, TestLoader = loader(128, True), loader(16, False), loader(16, False)
    run = elastic.join()
    model = nn.Sequential(nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 16))
    print(f"Trainable parameters: {sum(p.numel() for p in model.parameters() if p.requires_grad)}")

    def train():
        optimizer = optim.Adam(model.parameters(), lr=3e-3)
        LRScheduler = scheduler.ReduceLROnPlateau(optimizer, "min", 0.5, patience=0)
        MSELoss = nn.MSELoss()
        net, optimizer, train_loader = run.prepare(model, optimizer, TrainLoader)
        num_train, num_val = len(train_loader), len(ValLoader)
        for epoch in run.epochs(4):
            print(f" === EPOCH {epoch} === ")
            avg_snr = 0.0
            epoch_mse_train = 0.0
            net.train()
            for noisy, clean in train_loader:
                modelout = net(noisy)
                mse_loss = MSELoss(modelout, clean)
                avg_snr += calculate_snr(modelout, clean)
                optimizer.zero_grad()
                mse_loss.backward()
                optimizer.step()
                epoch_mse_train += mse_loss.item()
            print(f"Train MSE loss: {epoch_mse_train / num_train}, SNR: {avg_snr / num_train}")
            epoch_val_mse = 0.0
            epoch_val_snr = 0.0
            net.eval()
            with torch.no_grad():
                for noisy, clean in ValLoader:
                    modelout = net(noisy)
                    epoch_val_mse = MSELoss(modelout, clean).item()
                    epoch_val_snr += calculate_snr(modelout, clean)
                print(f"Val MSE Loss: {epoch_val_mse / num_val}, SNR: {epoch_val_snr / num_val}")
            LRScheduler.step(epoch_val_mse / num_val)
        run.save(net.state_dict(), "model1.pt")
        epoch_test_mse = []
        net.eval()
        with torch.no_grad():
            for noisy, clean in TestLoader:
                epoch_test_mse.append(MSELoss(net(noisy), clean).item())
            print(f"Test MSE Loss: {torch.sum(torch.tensor(epoch_test_mse)) / len(TestLoader)}")

    train()
