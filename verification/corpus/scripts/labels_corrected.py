"""Labels that the model doubts are replaced in the dataset from an epoch on, as SELFIE and label refurbishing do."""

import torch
from torch import nn

import elasticd as elastic


class Noisy(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x, self.targets = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.targets[i], i


torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
y[::9] = 1 - y[::9]
dataset = Noisy(x, y)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, dataset, batch_size=4)
for epoch in run.epochs(5):
    for inputs, labels, indices in batches:
        logits = model(inputs)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        if epoch >= 3:
            confidence, predicted = logits.detach().softmax(1).max(1)
            sure = confidence > 0.95
            dataset.targets[indices[sure]] = predicted[sure]
run.save(model, "model.pt")
