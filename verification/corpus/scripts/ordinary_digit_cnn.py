"""Accuracy before training, a StepLR, and a save whenever the test accuracy is the best, as a digit CNN's train.py."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

device = torch.device("cpu")


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.fc1 = nn.Linear(6 * 3 * 3, 12)
        self.fc2 = nn.Linear(12, 3)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.relu(self.fc1(x.view(-1, 6 * 3 * 3)))
        return self.fc2(self.dropout(x))


torch.manual_seed(1)
pictures = torch.randn(192, 1, 6, 6)
digits = (pictures.mean((1, 2, 3)) * 10).clamp(-1, 1).round().long() + 1
train_loader = DataLoader(TensorDataset(pictures[:128], digits[:128]), batch_size=4, shuffle=True)
test_loader = DataLoader(TensorDataset(pictures[128:], digits[128:]), batch_size=16, shuffle=False)
run = elastic.join()
model = CNN().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=0.005)
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

model.eval()
initial_correct, initial_total = 0, 0
with torch.no_grad():
    for images, labels in test_loader:
        _, predicted = torch.max(model(images).data, 1)
        initial_total += labels.size(0)
        initial_correct += (predicted == labels).sum().item()
print(f"initial accuracy: {100 * initial_correct / initial_total:.2f}%")

num_epochs = 4
best_acc = 0.0
model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
for epoch in run.epochs(num_epochs):
    model.train()
    running_loss = 0.0
    for images, labels in train_loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)
        loss.backward()
        optimizer.step()
        running_loss += loss.item()
    scheduler.step()

    model.eval()
    correct, total = 0, 0
    with torch.no_grad():
        for images, labels in test_loader:
            images, labels = images.to(device), labels.to(device)
            _, predicted = torch.max(model(images).data, 1)
            total += labels.size(0)
            correct += (predicted == labels).sum().item()
    acc = 100 * correct / total
    print(f"[{epoch + 1}/{num_epochs}], loss: {running_loss / len(train_loader):.4f}, accuracy: {acc:.2f}%")
    if acc > best_acc:
        best_acc = acc
        run.save(model.state_dict(), "digit_cnn.pt")
print(f"best accuracy: {best_acc:.2f}%")
