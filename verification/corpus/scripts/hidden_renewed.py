"""A module keeps its hidden state and begins it anew at each batch by `init_hidden`, as PyTorch's sequence tutorials do."""

import torch
from torch import nn

import elasticd as elastic


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRUCell(1, 8), nn.Linear(8, 1)
        self.hidden = self.init_hidden(4)

    def init_hidden(self, size):
        return torch.zeros(size, 8)

    def forward(self, x):
        for t in range(x.shape[1]):
            self.hidden = self.rnn(x[:, t], self.hidden)
        return self.head(self.hidden)


torch.manual_seed(0)
x = torch.randn(128, 6, 1)
y = x.sum(1)
model = Tagger()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        model.hidden = model.init_hidden(len(inputs))
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
