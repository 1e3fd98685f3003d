"""Noise on the inputs, early stopping by accuracy, the best file loaded again behind the loop, as a network intrusion detector's train_gnn.py."""

import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic


def get_data_loaders():
    torch.manual_seed(2)
    X = torch.randn(192, 10)
    y = (X[:, :3] + torch.randn(192, 3)).argmax(1)
    parts = [TensorDataset(X[a:b], y[a:b]) for a, b in ((0, 128), (128, 160), (160, 192))]
    return [DataLoader(part, batch_size=4, shuffle=i == 0) for i, part in enumerate(parts)]


def train_model():
    train_loader, val_loader, test_loader = get_data_loaders()
    run = elastic.join()
    model = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
    criterion = nn.CrossEntropyLoss(label_smoothing=0.2)
    optimizer = optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-2)
    num_epochs = 5
    patience = 3
    best_val_accuracy = 0
    patience_counter = 0
    train_losses = []
    val_losses = []
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)
    for epoch in run.epochs(num_epochs):
        model.train()
        total_loss = 0
        correct_train = 0
        total_train = 0
        for X, y in train_loader:
            X = X + 0.01 * torch.randn_like(X)
            optimizer.zero_grad()
            outputs = model(X)
            loss = criterion(outputs, y)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
            _, predicted = torch.max(outputs, 1)
            total_train += y.size(0)
            correct_train += (predicted == y).sum().item()
        train_losses.append(total_loss / len(train_loader))
        train_acc = 100 * correct_train / total_train
        model.eval()
        correct_val = 0
        total_val = 0
        val_loss = 0
        with torch.no_grad():
            for X, y in val_loader:
                outputs = model(X)
                val_loss += criterion(outputs, y).item()
                _, predicted = torch.max(outputs, 1)
                total_val += y.size(0)
                correct_val += (predicted == y).sum().item()
        val_losses.append(val_loss / len(val_loader))
        val_acc = 100 * correct_val / total_val
        print(f"Epoch {epoch + 1}/{num_epochs} | Train Acc: {train_acc:.2f}% | Val Acc: {val_acc:.2f}%")
        if val_acc > best_val_accuracy:
            best_val_accuracy = val_acc
            patience_counter = 0
            run.save(model.state_dict(), "GNN_Model.pt")
            print("Model improved, saved.")
        else:
            patience_counter += 1
            if patience_counter >= patience:
                print("Early stopping triggered.")
                break
    print(f"Best Validation Accuracy: {best_val_accuracy:.2f}%")
    model.load_state_dict(torch.load("GNN_Model.pt"))
    model.eval()
    correct_test = sum((model(X).argmax(1) == y).sum().item() for X, y in test_loader)
    print(f"Test Accuracy: {100 * correct_test / 32:.2f}%")


if __name__ == "__main__":
    train_model()
