"""A generator's step and a discriminator's step in each batch, with plain BCE, as a text-to-image GAN's train.py."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

latent_dim = 4
batch_size = 4
epochs = 4


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.net = nn.Sequential(nn.Linear(latent_dim + 4, 16), nn.ReLU(), nn.Linear(16, 9), nn.Tanh())

    def forward(self, z, captions):
        return self.net(torch.cat([z, self.embedding(captions).mean(1)], 1))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.net = nn.Sequential(nn.Linear(9 + 4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, images, captions):
        return self.net(torch.cat([images, self.embedding(captions).mean(1)], 1))


torch.manual_seed(0)
captions = torch.randint(10, (128, 5))
images = torch.tanh(torch.randn(128, 9) + captions.float().mean(1, keepdim=True) / 10)
data_loader = DataLoader(TensorDataset(images, captions), batch_size=batch_size, shuffle=True)
run = elastic.join()
generator, discriminator = Generator(), Discriminator()
adversarial_loss = nn.BCELoss()
optimizer_G = optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
optimizer_D = optim.Adam(discriminator.parameters(), lr=0.0002, betas=(0.5, 0.999))
both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
both, (optimizer_G, optimizer_D), data_loader = run.prepare(both, [optimizer_G, optimizer_D], data_loader)

for epoch in run.epochs(epochs):
    for i, (real_imgs, batch_captions) in enumerate(data_loader):
        valid = torch.ones(len(real_imgs), 1)
        fake = torch.zeros(len(real_imgs), 1)

        optimizer_G.zero_grad()
        z = torch.randn(len(real_imgs), latent_dim)
        gen_imgs = generator(z, batch_captions)
        validity = discriminator(gen_imgs, batch_captions)
        g_loss = adversarial_loss(validity, valid)
        g_loss.backward()
        optimizer_G.step()

        optimizer_D.zero_grad()
        real_loss = adversarial_loss(discriminator(real_imgs, batch_captions), valid)
        fake_loss = adversarial_loss(discriminator(gen_imgs.detach(), batch_captions), fake)
        d_loss = (real_loss + fake_loss) / 2
        d_loss.backward()
        optimizer_D.step()

        if i % 100 == 0:
            print(f"Epoch [{epoch}/{epochs}], Batch [{i}], D Loss: {d_loss.item():.4f}, G Loss: {g_loss.item():.4f}")
    if (epoch + 1) % 2 == 0:
        run.save(generator.state_dict(), f"generator_epoch_{epoch + 1}.pt")
run.save(generator.state_dict(), "generator_final.pt")
