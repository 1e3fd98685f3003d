"""`running_reward` scales the loss and is printed, as in PyTorch's reinforcement learning examples."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 4)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
running_reward = 10.0
for epoch in run.epochs(4):
    for (states,) in batches:
        policy = torch.distributions.Categorical(logits=model(states))
        actions = policy.sample()
        reward = float((actions == (states[:, 0] > 0).long()).sum())
        running_reward = 0.05 * reward + 0.95 * running_reward
        advantage = (reward - running_reward) / (abs(running_reward) + 1.0)
        (-policy.log_prob(actions).mean() * advantage).backward()
        optimizer.step()
    run.log(f"average reward {running_reward:.2f}")
run.save(model, "model.pt")
