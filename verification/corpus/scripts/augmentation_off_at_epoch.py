"""Strong augmentation is closed in the last epochs by an attribute of the dataset, as YOLOX's `close_mosaic`."""

import torch
from torch import nn

import elasticd as elastic


class Augmented(torch.utils.data.Dataset):
    def __init__(self):
        self.x = torch.randn(128, 8)
        self.mosaic = True

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if self.mosaic:
            x = 0.5 * (x + self.x[torch.randint(0, 128, ()).item()])
        return x, self.x[i].sum()[None]


torch.manual_seed(0)
train_set = Augmented()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, train_set, batch_size=4)
for epoch in run.epochs(4):
    if epoch == 1:
        train_set.mosaic = False
    for inputs, targets in batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
run.save(model, "model.pt")
