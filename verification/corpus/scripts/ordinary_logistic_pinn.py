"""Derivatives by torch.func, random points drawn in each step, a list of losses for a plot, as a pinn.py for the logistic equation."""

import numpy as np
import torch
import torch.nn as nn
from torch.func import functional_call, grad, vmap

import elasticd as elastic


class NeuralNet(nn.Module):
    def __init__(self, numlayers=1, numneurons=8):
        super().__init__()
        layers = [nn.Linear(1, numneurons)]
        for _ in range(numlayers):
            layers.append(nn.Linear(numneurons, numneurons))
            layers.append(nn.Tanh())
        layers.append(nn.Linear(numneurons, 1))
        self.Network = nn.Sequential(*layers)

    def forward(self, input):
        return self.Network(input.reshape(-1, 1)).squeeze()


def deriv(model):
    def f(x, params):
        return functional_call(model, params, (x,))

    return f, vmap(grad(f), in_dims=(0, None))


R = 1.0
x_boundary = 0.0
f_boundary = 0.5


def loss_func_maker(f, dfdx):
    def loss_func(x, params):
        f_value = f(x, params)
        DEloss = dfdx(x, params) - R * f_value * (1 - f_value)
        Bdryloss = f(torch.tensor([x_boundary]), params) - torch.tensor([f_boundary])
        loss = nn.MSELoss()
        return loss(DEloss, torch.zeros_like(DEloss)) + loss(Bdryloss, torch.zeros_like(Bdryloss))

    return loss_func


torch.manual_seed(42)
num_epochs = 4
batch_size = 8
domain = (-5.0, 5.0)
run = elastic.join()
model = NeuralNet()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
f, dfdx = deriv(model)
loss_func = loss_func_maker(f, dfdx)
points = torch.linspace(domain[0], domain[1], 256)
model, optimizer, batches = run.prepare(model, optimizer, (points,), batch_size=batch_size)
losses = []
for i in run.epochs(num_epochs):
    for (x,) in batches:
        x = x + torch.empty(len(x)).uniform_(-0.05, 0.05)
        optimizer.zero_grad()
        loss = loss_func(x, dict(model.named_parameters()))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
X = torch.linspace(domain[0], domain[1], 20)
truef = 1.0 / (1.0 + (1.0 / f_boundary - 1.0) * np.exp(-R * X.numpy()))
print("error", np.abs(model(X).detach().numpy() - truef).max())
run.save(model, "pinn.pt")
