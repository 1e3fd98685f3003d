"""A pool of images that were generated before, half of them given to the critic, as CycleGAN's `ImagePool`."""

import random

import torch
from torch import nn

import elasticd as elastic


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        given = []
        for image in images:
            if len(self.images) < self.size:
                self.images.append(image)
                given.append(image)
            elif random.random() > 0.5:
                i = random.randrange(self.size)
                given.append(self.images[i])
                self.images[i] = image
            else:
                given.append(image)
        return torch.stack(given)


torch.manual_seed(0)
x = torch.randn(128, 2) + 2
model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
generator = nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
pool = ImagePool(20)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (real,) in batches:
        fake = pool.query(generator(torch.randn(len(real), 3)).detach())
        ((model(real) - 1) ** 2 + model(fake) ** 2).mean().backward()
        optimizer.step()
run.save(model, "model.pt")
