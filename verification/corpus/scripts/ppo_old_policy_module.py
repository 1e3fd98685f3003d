"""PPO with a second policy whose weights are loaded from the first every epoch, as PPO-PyTorch's `policy_old`."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 6)
model = nn.Linear(6, 3)
policy_old = nn.Linear(6, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    policy_old.load_state_dict(model.state_dict())
    for (states,) in batches:
        with torch.no_grad():
            old = torch.distributions.Categorical(logits=policy_old(states))
            actions = old.sample()
        rewards = (actions == states[:, :3].argmax(1)).float() - 0.3
        new = torch.distributions.Categorical(logits=model(states))
        ratio = (new.log_prob(actions) - old.log_prob(actions)).exp()
        (-torch.min(ratio * rewards, ratio.clamp(0.8, 1.2) * rewards).mean()).backward()
        optimizer.step()
run.save(model, "model.pt")
