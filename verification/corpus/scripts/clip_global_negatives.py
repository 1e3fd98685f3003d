"""CLIP with negatives of the whole global batch, gathered with their gradients, as open_clip's local loss."""

import torch
from torch import nn

import elasticd as elastic


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
        self.text = nn.Linear(6, 4)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, image, text):
        a = nn.functional.normalize(self.image(image), dim=1)
        b = nn.functional.normalize(self.text(text), dim=1)
        return a, b, self.scale.exp()


torch.manual_seed(0)
x, y = torch.randn(128, 8), torch.randn(128, 6)
model = Clip()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4, drop_last=True, gathers=True)
for epoch in run.epochs(4):
    for image, text in batches:
        images, texts, scale = model(image, text)
        every_image, every_text = run.gather(images), run.gather(texts)
        target = torch.arange(len(images)) + run.virtual_worker * len(images)
        loss = nn.functional.cross_entropy(scale * images @ every_text.T, target)
        (loss + nn.functional.cross_entropy(scale * texts @ every_image.T, target)).backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
