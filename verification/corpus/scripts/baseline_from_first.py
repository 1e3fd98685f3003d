"""A baseline that the first batch sets and later ones move, `if baseline is None`, as attention models for routing have."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
baseline = None
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (inputs,) in batches:
        policy = torch.distributions.Categorical(logits=model(inputs))
        actions = policy.sample()
        reward = inputs.gather(1, actions[:, None]).squeeze(1)
        if baseline is None:
            baseline = reward.mean()
        else:
            baseline = 0.8 * baseline + 0.2 * reward.mean()
        advantage = reward - baseline if epoch >= 1 else reward
        (-advantage * policy.log_prob(actions)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
run.save(model, "model.pt")
