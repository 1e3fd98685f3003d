"""Batches of similar length, padded by a collate function that crops at random, as speech recognition's loaders have."""

import random

import numpy as np
import torch
from torch import nn

import elasticd as elastic


class BucketBatchSampler:
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: (self.lengths[i], random.random()))
        buckets = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        random.shuffle(buckets)
        return iter(buckets)


def collate(samples):
    cropped = [s[random.randint(0, 2) :] for s in samples]
    return nn.utils.rnn.pad_sequence(cropped, batch_first=True), torch.stack([s.sum() for s in samples])


def seed_worker(worker_id):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.rnn(x[..., None])[1][0])


if __name__ == "__main__":
    torch.manual_seed(0)
    samples = [torch.randn(4 + i % 7) for i in range(128)]
    loader = torch.utils.data.DataLoader(
        samples,
        batch_sampler=BucketBatchSampler([len(s) for s in samples], 4),
        collate_fn=collate,
        num_workers=1,
        worker_init_fn=seed_worker,
    )
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run = elastic.join()
    model, optimizer, batches = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(4):
        for inputs, targets in batches:
            nn.functional.mse_loss(model(inputs).squeeze(1), targets).backward()
            optimizer.step()
    run.save(model, "model.pt")
