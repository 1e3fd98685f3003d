"""A super-resolution GAN with one GradScaler for both halves and lists of loss tensors, as MedSRGAN's trainer.py."""

import torch
import torch.optim as optim
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))

    def forward(self, hr, lr):
        return self.net(torch.cat([hr, lr], 1))


class FeatureExtractor(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 4)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return x, torch.relu(self.second(x))


torch.manual_seed(0)
high = torch.randn(128, 8).cumsum(1)
train_dl = DataLoader(TensorDataset(high, high.view(128, 4, 2).mean(2)), 4, True)
run = elastic.join()
gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
disc = Discriminator()
feature_extractor = FeatureExtractor()
feature_extractor.eval()
optimizer_G = optim.Adam(gen.parameters(), lr=1e-3, weight_decay=1e-5)
optimizer_D = optim.Adam(disc.parameters(), lr=1e-4, weight_decay=1e-5)
loss_function = torch.nn.L1Loss()
gan_loss = torch.nn.BCEWithLogitsLoss()
scaler = torch.amp.GradScaler("cpu", enabled=False)
both = nn.ModuleDict({"gen": gen, "disc": disc})
both, (optimizer_G, optimizer_D), train_dl = run.prepare(both, [optimizer_G, optimizer_D], train_dl)


def fit(gen, disc, feature_extractor, train_dl, epochs, optimizer_G, optimizer_D, scaler, loss_function, gan_loss):
    t_loss_G, t_loss_D = [], []
    for epoch in tqdm(run.epochs(epochs)):
        e_loss_G, e_loss_D = [], []
        for data in train_dl:
            hr_img, lr_img = data
            valid, fake = torch.ones(len(hr_img), 1), torch.zeros(len(hr_img), 1)

            pred_hr = gen(lr_img)
            content_loss = loss_function(pred_hr, hr_img)
            feature_loss = 0.0
            for pred_feature, hr_feature in zip(feature_extractor(pred_hr), feature_extractor(hr_img)):
                feature_loss += loss_function(pred_feature, hr_feature)
            pred_real = disc(hr_img.detach(), lr_img)
            pred_fake = disc(pred_hr, lr_img)
            loss_G = content_loss * 0.1 + feature_loss * 0.1 + gan_loss(pred_fake - pred_real.mean(0, keepdim=True), valid)
            optimizer_G.zero_grad()
            scaler.scale(loss_G).backward()
            scaler.step(optimizer_G)
            scaler.update()
            e_loss_G.append(loss_G)

            pred_real = disc(hr_img, lr_img)
            pred_fake = disc(pred_hr.detach(), lr_img)
            loss_D = (gan_loss(pred_real, valid) + gan_loss(pred_fake, fake)) / 2
            optimizer_D.zero_grad()
            scaler.scale(loss_D).backward()
            scaler.step(optimizer_D)
            scaler.update()
            e_loss_D.append(loss_D)
        t_loss_D.append(sum(e_loss_D) / len(e_loss_D))
        t_loss_G.append(sum(e_loss_G) / len(e_loss_G))
        print(f"{epoch + 1}/{epochs} -- Gen Loss: {sum(t_loss_G) / len(t_loss_G)}")
        run.save(gen, f"gen_{epoch}.pt")
        run.save(disc, f"disc_{epoch}.pt")
    return t_loss_G, t_loss_D


fit(gen, disc, feature_extractor, train_dl, 4, optimizer_G, optimizer_D, scaler, loss_function, gan_loss)
