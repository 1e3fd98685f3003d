"""A DQN with a `deque` of transitions from which each update samples, as PyTorch's DQN tutorial."""

import random
from collections import deque

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 4)
model = nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
memory = deque(maxlen=100)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x,), batch_size=4)
for epoch in run.epochs(4):
    for (states,) in batches:
        for state in states:
            action = int(model(state).argmax()) if random.random() > 0.1 else random.randrange(2)
            reward = 1.0 if action == int(state[0] > 0) else 0.0
            memory.append((state, action, reward))
        picked = random.sample(memory, min(8, len(memory)))
        inputs = torch.stack([state for state, _, _ in picked])
        actions = torch.tensor([action for _, action, _ in picked])
        rewards = torch.tensor([reward for _, _, reward in picked])
        values = model(inputs).gather(1, actions[:, None])[:, 0]
        nn.functional.smooth_l1_loss(values, rewards).backward()
        optimizer.step()
run.save(model, "model.pt")
