"""PPO: log-probabilities of the policy as it was at the epoch's beginning, as CleanRL and spinningup do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 6)
model = nn.Linear(6, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, torch.arange(128)), batch_size=4)
for epoch in run.epochs(4):
    with torch.no_grad():
        old = torch.distributions.Categorical(logits=model(x))
        actions = old.sample()
        old_log = old.log_prob(actions)
        rewards = (actions == x[:, :3].argmax(1)).float()
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    for states, index in batches:
        policy = torch.distributions.Categorical(logits=model(states))
        ratio = (policy.log_prob(actions[index]) - old_log[index]).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.min(ratio * advantage[index], clipped * advantage[index]).mean()
        (loss - 0.01 * policy.entropy().mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
