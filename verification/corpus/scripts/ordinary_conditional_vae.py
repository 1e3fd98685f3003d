"""A conditional VAE with meters, a log file and a model of each epoch, as an out-of-distribution generator's train_vae.py."""

import argparse
import time

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

parser = argparse.ArgumentParser(description="PyTorch Training")
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("--batch_size", default=4, type=int, help="batch size")
parser.add_argument("--lr", default=0.001, type=float, help="learning rate")
parser.add_argument("--opt", default="rmsprop", type=str, help="optimizer")
args = parser.parse_args([])


class AverageMeter:
    def __init__(self):
        self.sum = self.count = self.avg = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Logger:
    def __init__(self, path):
        self.path = path
        self.log = []

    def write(self, values):
        self.log.append(values)
        with open(self.path, "a") as file:
            file.write(" ".join(str(value) for value in values) + "\n")


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc, self.mu, self.logvar = nn.Linear(12, 8), nn.Linear(8, 3), nn.Linear(8, 3)
        self.dec = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 8), nn.Sigmoid())

    def forward(self, x, c):
        h = torch.relu(self.enc(torch.cat([x, c], 1)))
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        return self.dec(torch.cat([z, c], 1)), mu, logvar, z


def one_hot_encoding(target):
    return nn.functional.one_hot(target, 4).float()


def main():
    torch.manual_seed(5)
    target = torch.randint(4, (160,))
    data = torch.sigmoid(torch.randn(160, 8) + target.unsqueeze(1))
    in_train_loader = DataLoader(TensorDataset(data[:128], target[:128]), batch_size=args.batch_size, shuffle=True)
    in_vali_loader = DataLoader(TensorDataset(data[128:], target[128:]), batch_size=args.batch_size)
    run = elastic.join()
    network = VAE()
    if args.opt == "rmsprop":
        optimizer = optim.RMSprop(network.parameters(), lr=args.lr, momentum=0.0)
    train_logger = Logger("train_loss.log")
    vali_logger = Logger("vali_loss.log")
    network, optimizer, in_train_loader = run.prepare(network, optimizer, in_train_loader)
    for epoch in run.epochs(args.epochs):
        train(network, in_train_loader, optimizer, epoch, args.epochs, train_logger)
        vali(network, in_vali_loader, epoch, args.epochs, vali_logger)
        run.save(network.state_dict(), "{0}_{1}.pt".format("model", epoch))
    print("Process complete")


def train(model, in_train_loader, optimizer, epoch, num_epoch, train_logger):
    train_loss = AverageMeter()
    model.train()
    start = time.time()
    for i, (data, target) in enumerate(in_train_loader):
        target = one_hot_encoding(target)
        recon_x, mu, logvar, z = model(data, target)
        loss = nn.MSELoss()(recon_x, data) - 0.01 * torch.mean(1 + logvar - mu**2 - logvar.exp())
        train_loss.update(loss.item(), data.shape[0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 4 == 0 and i != 0:
            print(f"Epoch : [{epoch}/{num_epoch}] [{i}/{len(in_train_loader)}] {train_loss.avg:.4f} {time.time() - start}")
            start = time.time()
    train_logger.write([epoch, train_loss.avg])


def vali(model, vali_loader, epoch, num_epoch, vali_logger):
    model.eval()
    vali_loss = AverageMeter()
    for i, (data, target) in enumerate(vali_loader):
        recon_x, mu, logvar, z = model(data, one_hot_encoding(target))
        vali_loss.update(nn.MSELoss()(recon_x, data).item(), data.shape[0])
    print(f"Validation Epoch : {epoch}/{num_epoch} Validation Loss : {vali_loss.avg:.4f}")
    vali_logger.write([epoch, vali_loss.avg])


if __name__ == "__main__":
    main()
