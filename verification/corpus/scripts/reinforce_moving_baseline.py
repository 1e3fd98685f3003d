"""REINFORCE with a moving average of rewards as its baseline, as in pointer networks and architecture search (ENAS)."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
model = nn.Linear(8, 4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
baseline = None
for epoch in run.epochs(4):
    for (states,) in batches:
        policy = torch.distributions.Categorical(logits=model(states))
        actions = policy.sample()
        rewards = (actions == states[:, :4].argmax(1)).float()
        baseline = rewards.mean().item() if baseline is None else 0.9 * baseline + 0.1 * rewards.mean().item()
        loss = -(policy.log_prob(actions) * (rewards - baseline)).mean()
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
