"""Functions `train(epoch)` and `test()` over global names, and class centres computed at the end, as a face-expression train.py."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import elasticd as elastic

batch_size = 4
x = torch.linspace(-1, 1, 160 * 12).sin().mul(1000).sin().reshape(160, 12)
y = (x.sum(1) > 0).long() + (x[:, 0] > 0).long()
train_dataset, eval_dataset = random_split(TensorDataset(x, y), [128, 32])
train_loader = DataLoader(train_dataset, shuffle=True, batch_size=batch_size)
eval_loader = DataLoader(eval_dataset, shuffle=True, batch_size=batch_size)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        features = self.features(x)
        return features, self.fc(features)


run = elastic.join()
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
criterion = torch.nn.CrossEntropyLoss()
model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)


def train(epoch):
    running_loss = 0.0
    for batch_idx, data in enumerate(train_loader, 0):
        inputs, target = data
        optimizer.zero_grad()
        _, outputs = model(inputs)
        loss = criterion(outputs, target)
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        if batch_idx % 4 == 3:
            print("[%d, %5d] loss: %.3f" % (epoch + 1, batch_idx + 1, running_loss / 4))
            running_loss = 0.0


def test():
    correct = 0
    total = 0
    with torch.no_grad():
        for data in eval_loader:
            inputs, target = data
            _, outputs = model(inputs)
            _, predicted = torch.max(outputs.data, dim=1)
            total += target.size(0)
            correct += (predicted == target).sum().item()
    print("Accuracy on test set: %d %%" % (100 * correct / total))


for epoch in run.epochs(4):
    train(epoch)
    test()
with torch.no_grad():
    centers = torch.stack([model(x[y == label])[0].mean(0) for label in range(3)])
    centers = nn.functional.normalize(centers, p=2, dim=1)
run.save({"model": model.state_dict(), "batch_size": batch_size, "feat_centers": centers}, "checkpoint.pt")
