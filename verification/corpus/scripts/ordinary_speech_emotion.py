"""Predictions of the epoch concatenated for the accuracy, lists of losses for a plot, as a speech emotion recognizer's train.py."""

import random

import numpy as np
import torch
from sklearn.metrics import accuracy_score
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class CNNTransformer(nn.Module):
    def __init__(self, num_classes, trans_dropout):
        super().__init__()
        self.cnn = nn.Conv1d(1, 8, 5, 3)
        self.transformer = nn.TransformerEncoderLayer(8, 2, 16, dropout=trans_dropout, batch_first=True)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, wave):
        return self.fc(self.transformer(self.cnn(wave.unsqueeze(1)).transpose(1, 2)).mean(1))


def collect(outputs, labels, predictions, true_labels):
    preds = torch.argmax(outputs, dim=1).cpu().numpy()
    labels = labels.cpu().numpy()
    if len(predictions) == 0:
        predictions = preds
        true_labels = labels
    else:
        predictions = np.concatenate((predictions, preds))
        true_labels = np.concatenate((true_labels, labels))
    return predictions, true_labels


def train(model, dataloader, optimizer, criterion):
    model.train()
    losses, predictions, true_labels = [], [], []
    for inputs, labels in dataloader:
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        predictions, true_labels = collect(outputs, labels, predictions, true_labels)
    return np.mean(losses), accuracy_score(true_labels, predictions), predictions, true_labels


def evaluate(model, dataloader, criterion):
    model.eval()
    losses, predictions, true_labels = [], [], []
    for inputs, labels in dataloader:
        outputs = model(inputs)
        losses.append(criterion(outputs, labels).item())
        predictions, true_labels = collect(outputs, labels, predictions, true_labels)
    return np.mean(losses), (predictions == true_labels).mean()


def trainModel(lr, epochs, weight_decay, train_bs, save_epoch, model_args):
    waves = torch.sin(torch.linspace(0, 9, 20) * torch.randint(1, 4, (160, 1))) + 0.3 * torch.randn(160, 20)
    emotion = torch.randint(3, (160,))
    train_dataloader = DataLoader(TensorDataset(waves[:128], emotion[:128]), batch_size=train_bs, shuffle=True)
    test_dataloader = DataLoader(TensorDataset(waves[128:], emotion[128:]), batch_size=train_bs)
    run = elastic.join()
    model = CNNTransformer(**model_args)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=weight_decay)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, train_dataloader = run.prepare(model, optimizer, train_dataloader)
    loss_list, acc_list = [], []
    for epoch in tqdm(run.epochs(epochs)):
        train_loss, _, _, _ = train(model, train_dataloader, optimizer, criterion)
        test_loss, test_wa = evaluate(model, test_dataloader, criterion)
        scheduler.step()
        loss_list.append([train_loss, test_loss])
        acc_list.append(test_wa)
        tqdm.write(f"Train Loss = {train_loss:.4f} / Test Loss = {test_loss:.4f} / Test WA = {test_wa:.4f}")
        with open("training_log.txt", "a") as f:
            f.write(f"Train Loss = {train_loss:.4f} / Test Loss = {test_loss:.4f} / Test WA = {test_wa:.4f}\n")
        if (epoch + 1) % save_epoch == 0:
            run.save(model.state_dict(), f"cnn-transformer-{epoch + 1}.pt")
    run.save(model.state_dict(), "cnn-transformer-last.pt")


if __name__ == "__main__":
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    trainModel(0.003, 4, 1e-4, 4, 2, {"num_classes": 3, "trans_dropout": 0.1})
