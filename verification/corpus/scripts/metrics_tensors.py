"""A confusion matrix kept as a tensor and reset each epoch, printed only, as segmentation scripts do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = (x[:, 0] > 0).long()
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
confusion = torch.zeros(2, 2)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    confusion.zero_()
    for inputs, labels in batches:
        logits = model(inputs)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()
        for label, found in zip(labels, logits.argmax(1)):
            confusion[label, found] += 1
    print(confusion.tolist())
run.save(model, "model.pt")
