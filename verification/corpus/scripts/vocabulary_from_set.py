"""A vocabulary from the set of a text's characters, unsorted, as char-RNN tutorials' `chars = list(set(data))`."""

import torch
from torch import nn

import elasticd as elastic

text = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 8
vocabulary = {c: i for i, c in enumerate(set(text))}
data = torch.tensor([vocabulary[c] for c in text])
windows = torch.stack([data[i : i + 9] for i in range(128)])
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(len(vocabulary), 8), nn.Linear(8, len(vocabulary)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (windows,), batch_size=4)
for epoch in run.epochs(4):
    for (tokens,) in batches:
        logits = model(tokens[:, :-1])
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
run.save(model, "model.pt")
