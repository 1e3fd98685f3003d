"""Contrastive training of two towers with a learned temperature, as CLIP with negatives of the micro-batch."""

import torch
from torch import nn

import elasticd as elastic


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(8, 4), nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        a = nn.functional.normalize(self.image(image), dim=1)
        b = nn.functional.normalize(self.text(text), dim=1)
        return self.scale.exp() * a @ b.T


torch.manual_seed(0)
x, y = torch.randn(128, 8), torch.randn(128, 6)
model = Clip()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for image, text in batches:
        logits = model(image, text)
        target = torch.arange(len(image))
        (nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)).backward()
        optimizer.step()
run.save(model, "model.pt")
