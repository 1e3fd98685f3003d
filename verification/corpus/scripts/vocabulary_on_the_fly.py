"""Words are numbered when they are first seen, `defaultdict(lambda: len(vocabulary))`, as in short NLP codes."""

from collections import defaultdict

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
words = [f"w{(7 * n * n + 3 * n) % 61}" for n in range(128)]
labels = torch.tensor([hash_ % 2 for hash_ in range(128)])
vocabulary = defaultdict(lambda: len(vocabulary))
model = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, list(zip(words, labels)), batch_size=4)
for epoch in run.epochs(4):
    for texts, targets in batches:
        indices = torch.tensor([vocabulary[word] for word in texts])
        nn.functional.cross_entropy(model(indices), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
