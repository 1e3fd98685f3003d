"""Two optimizers that step at alternate batches, as alternating least squares and NAS (weights, architecture) do."""

import torch
from torch import nn

import elasticd as elastic


class Factors(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights, self.alphas = nn.Linear(8, 4), nn.Parameter(torch.zeros(4))

    def forward(self, inputs):
        return (self.weights(inputs) * self.alphas.softmax(0)).sum(1, keepdim=True)


torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = Factors()
w_optim = torch.optim.SGD(model.weights.parameters(), lr=0.1)
alpha_optim = torch.optim.Adam([model.alphas], lr=0.05)
run = elastic.join()
model, (w_optim, alpha_optim), batches = run.prepare(model, [w_optim, alpha_optim], (x, y), batch_size=4)
step = 0
for epoch in run.epochs(4):
    for inputs, targets in batches:
        w_optim.zero_grad()
        alpha_optim.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        if step % 2 == 0:
            w_optim.step()
        else:
            alpha_optim.step()
        step += 1
run.save(model, "model.pt")
