"""A variational GP and its likelihood in two parameter groups, inducing points by randperm, losses in `logs`, as a GP classifier's train.py."""

import math

import torch
from torch import nn

import elasticd as elastic


class VariationalGP(nn.Module):
    def __init__(self, inducing_points):
        super().__init__()
        self.inducing = nn.Parameter(inducing_points)
        self.mean = nn.Parameter(torch.zeros(len(inducing_points)))
        self.log_std = nn.Parameter(torch.full((len(inducing_points),), -1.0))
        self.log_lengthscale = nn.Parameter(torch.zeros(()))

    def kernel(self, a, b):
        return torch.exp(-0.5 * torch.cdist(a, b) ** 2 / torch.exp(2 * self.log_lengthscale))

    def forward(self, x):
        gram = self.kernel(self.inducing, self.inducing) + 1e-2 * torch.eye(len(self.inducing))
        return torch.linalg.solve(gram, self.kernel(self.inducing, x)).T @ self.mean

    def kl(self):
        return 0.5 * (self.mean**2 + torch.exp(2 * self.log_std) - 1 - 2 * self.log_std).sum()


class Bernoulli(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, f, y):
        return nn.functional.binary_cross_entropy_with_logits(self.scale * f, y)


def train_gp_binary_on_cls(cls_train, y_train, num_inducing=8, epochs=32, lr=0.01, verbose=True):
    X = cls_train.float()
    y = y_train
    if y.dtype != torch.float32:
        y = y.float()
    n = X.size(0)
    m = min(num_inducing, n)
    idx = torch.randperm(n)[:m]
    inducing = X[idx].clone()
    run = elastic.join()
    model = VariationalGP(inducing_points=inducing)
    likelihood = Bernoulli()
    model.train()
    likelihood.train()
    optimizer = torch.optim.Adam([{"params": model.parameters()}, {"params": likelihood.parameters()}], lr=lr)
    model, optimizer, batches = run.prepare(model, optimizer, (X, y), batch_size=32)
    logs = {"loss": []}
    for ep in run.epochs(epochs):
        for X, y in batches:
            optimizer.zero_grad(set_to_none=True)
            output = model(X)
            loss = likelihood(output, y) + model.kl() / n
            loss.backward()
            optimizer.step()
        l = float(loss.item())  # noqa: E741
        logs["loss"].append(l)
        if verbose and (ep == 1 or ep % 20 == 0 or ep == epochs):
            print(f"[GP {ep:03d}/{epochs}] loss={l:.6f}")
    assert math.isfinite(l)
    run.save({"model": model.state_dict(), "likelihood": likelihood.state_dict()}, "gp.pt")
    return model, likelihood, logs


torch.manual_seed(0)
features = torch.randn(128, 4)
train_gp_binary_on_cls(features, (features.norm(dim=1) > 1.8).long())
