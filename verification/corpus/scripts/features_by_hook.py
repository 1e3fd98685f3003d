"""Features of a layer captured in a dict by a hook, and positional codes cached by length, as perceptual losses do."""

import torch
from torch import nn

import elasticd as elastic

torch.manual_seed(0)
x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
features, codes = {}, {}


def save_features(name):
    def hook(module, inputs, output):
        features[name] = output

    return hook


def code_of(length):
    if length not in codes:
        codes[length] = torch.arange(length).float().cos()
    return codes[length]


model[0].register_forward_hook(save_features("first"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, (x, y), batch_size=4)
for epoch in run.epochs(4):
    for inputs, targets in batches:
        outputs = model(inputs + 0.1 * code_of(inputs.shape[1]))
        loss = nn.functional.mse_loss(outputs, targets) + 0.01 * features["first"].square().mean()
        loss.backward()
        optimizer.step()
run.save(model, "model.pt")
