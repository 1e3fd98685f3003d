"""Skip-gram with negatives from a table that is drawn through in order by a position, as word2vec's data class."""

import torch
from torch import nn

import elasticd as elastic


class Negatives:
    def __init__(self, words, size=500):
        self.table = torch.randint(0, words, (size,), generator=torch.Generator().manual_seed(3))
        self.position = 0

    def take(self, count):
        taken = self.table[(self.position + torch.arange(count)) % len(self.table)]
        self.position = (self.position + count) % len(self.table)
        return taken


torch.manual_seed(0)
x = torch.randint(0, 30, (128, 2))
model = nn.ModuleDict({"centre": nn.Embedding(30, 6), "context": nn.Embedding(30, 6)})
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
negatives = Negatives(30)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (pairs,) in batches:
        c = model["centre"](pairs[:, 0])
        positive = (c * model["context"](pairs[:, 1])).sum(1)
        negative = (c * model["context"](negatives.take(len(c)))).sum(1)
        (-(nn.functional.logsigmoid(positive) + nn.functional.logsigmoid(-negative)).mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
