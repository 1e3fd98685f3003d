"""A language model whose hidden state goes on from batch to batch, detached, as PyTorch's word_language_model."""

import torch
from torch import nn

import elasticd as elastic


class Lm(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 12)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.words(tokens), hidden)
        return self.out(output), hidden


torch.manual_seed(0)
x = torch.randint(0, 12, (128, 7))
model = Lm()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4, shuffle=False)
hidden = torch.zeros(1, 4, 8)
for epoch in run.epochs(4):
    for (tokens,) in batches:
        hidden = hidden.detach()
        output, hidden = model(tokens[:, :-1], hidden)
        nn.functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
run.save(model, "model.pt")
