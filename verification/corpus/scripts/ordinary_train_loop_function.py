"""A function `train_loop` that prints every tenth batch, and a model saved behind it, as a Pokémon identifier's train.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic

learning_rate = 1e-2
batch_size = 4
epochs = 4


class TrainingDataset(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(128, 1, 6, 6, generator=generator)
        self.labels = (self.images.mean((1, 2, 3)) > 0).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]


def train_loop(dataloader, model, loss_fn, optimizer):
    size = len(dataloader.dataset)
    for batch, (X, y) in enumerate(dataloader):
        pred = model(X)
        loss = loss_fn(pred, y)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        if batch % 10 == 0:
            loss, current = loss.item(), batch * len(X)
            print(f"loss: {loss:>7f}  [{current:>5d}/{size:>5d}]")


run = elastic.join()
model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 2))
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
training_data = TrainingDataset()
train_dataloader = DataLoader(training_data, batch_size=batch_size, shuffle=True)
model, optimizer, train_dataloader = run.prepare(model, optimizer, train_dataloader)

for t in run.epochs(epochs):
    print(f"Epoch {t + 1}")
    train_loop(train_dataloader, model, loss_fn, optimizer)

run.save(model.state_dict(), "output.pt")
