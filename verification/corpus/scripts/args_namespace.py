"""A global `args` whose `iteration` and `beta` the loop changes, as argparse scripts do."""

import argparse

import torch
from torch import nn

import elasticd as elastic

args = argparse.Namespace(lr=0.03, beta=0.0, iteration=0)
torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        output = model(inputs)
        (nn.functional.mse_loss(output, targets) + args.beta * output.pow(2).mean()).backward()
        optimizer.step()
        args.iteration += 1
        args.beta = min(0.5, args.iteration * 0.005)
run.save(model, "model.pt")
