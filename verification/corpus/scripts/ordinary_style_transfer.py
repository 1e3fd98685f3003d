"""A transform network trained on features of a fixed network, the style's Gram matrices precomputed, as a fast style transfer's train.py."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


class TransformerNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect")
        self.in1 = nn.InstanceNorm2d(6, affine=True)
        self.conv2 = nn.Conv2d(6, 3, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        return self.conv2(torch.relu(self.in1(self.conv1(x))))


class Vgg(nn.Module):
    def __init__(self, requires_grad=False):
        super().__init__()
        self.slice1, self.slice2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        if not requires_grad:
            for param in self.parameters():
                param.requires_grad = False

    def forward(self, X):
        h1 = torch.relu(self.slice1(X))
        return h1, torch.relu(self.slice2(h1))


def calc_gram_matrix(y):
    (b, ch, h, w) = y.size()
    features = y.view(b, ch, w * h)
    return features.bmm(features.transpose(1, 2)) / (ch * h * w)


def normalize_batch(batch):
    mean = batch.new_tensor([0.485, 0.456, 0.406]).view(-1, 1, 1)
    std = batch.new_tensor([0.229, 0.224, 0.225]).view(-1, 1, 1)
    return (batch - mean) / std


def train():
    torch.manual_seed(0)
    pictures, labels = torch.rand(128, 3, 6, 6), torch.zeros(128)
    train_loader = DataLoader(TensorDataset(pictures, labels), batch_size=4, shuffle=True)
    run = elastic.join()
    transformer = TransformerNet()
    optimizer = optim.Adam(transformer.parameters(), lr=1e-3)
    mse_loss = torch.nn.MSELoss()
    vgg = Vgg(requires_grad=False)
    style = torch.rand(1, 3, 6, 6)
    gram_style = [calc_gram_matrix(y) for y in vgg(normalize_batch(style))]
    transformer, optimizer, train_loader = run.prepare(transformer, optimizer, train_loader)
    epochs = 4
    for epoch in run.epochs(epochs):
        transformer.train()
        for batch_id, (x, _) in enumerate(train_loader):
            n_batch = len(x)
            optimizer.zero_grad()
            y = transformer(x)
            features_y, features_x = vgg(normalize_batch(y)), vgg(normalize_batch(x))
            content_loss = 1.0 * mse_loss(features_y[1], features_x[1])
            style_loss = 0.0
            for ft_y, gm_s in zip(features_y, gram_style):
                style_loss += mse_loss(calc_gram_matrix(ft_y), gm_s.expand(n_batch, -1, -1))
            style_loss *= 100.0
            total_loss = content_loss + style_loss
            total_loss.backward()
            optimizer.step()
            if (batch_id + 1) % 5 == 0:
                print(f"Epoch {epoch + 1}/{epochs} [{batch_id + 1}/{len(train_loader)}] {content_loss.item():.2f}")
    transformer.eval()
    run.save(transformer.state_dict(), "starry_night.pt")


if __name__ == "__main__":
    train()
