"""Reviews sorted and packed by the collate function, meters, and a save if `val_acc` rose, as a film review classifier's train.py."""

import random

import numpy as np
import torch
from torch import nn, optim
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic


class AvgrageMeter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.avg = 0
        self.sum = 0
        self.cnt = 0

    def update(self, val, n=1):
        self.sum += val * n
        self.cnt += n
        self.avg = self.sum / self.cnt


def set_seed(seed):
    np.random.seed(seed)
    random.seed(seed)
    torch.manual_seed(seed)


def mycollate_fn(data):
    data.sort(key=lambda x: len(x[0]), reverse=True)
    data_length = [len(sq[0]) for sq in data]
    input_data = pad_sequence([i[0] for i in data], batch_first=True, padding_value=0)
    label_data = torch.tensor([i[1] for i in data])
    return input_data, label_data, data_length


class CommentDataSet(Dataset):
    def __init__(self, size):
        self.data = [torch.randint(1, 20, (random.randint(3, 9),)) for _ in range(size)]
        self.label = [int(words.float().mean() > 10) for words in self.data]

    def __getitem__(self, idx):
        return self.data[idx], self.label[idx]

    def __len__(self):
        return len(self.data)


class SentimentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embeddings = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.fc = nn.Linear(8, 2)

    def forward(self, inputs, lengths):
        packed = pack_padded_sequence(self.embeddings(inputs), lengths, batch_first=True)
        _, (hidden, _) = self.lstm(packed)
        return self.fc(hidden[-1]), hidden


def train():
    train_loader = DataLoader(CommentDataSet(128), batch_size=4, shuffle=True, collate_fn=mycollate_fn)
    validation_loader = DataLoader(CommentDataSet(32), batch_size=4, shuffle=True, collate_fn=mycollate_fn)
    run = elastic.join()
    model = SentimentModel()
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    criterion = nn.CrossEntropyLoss()
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)

    for epoch in run.epochs(4):
        model.train()
        top1 = AvgrageMeter()
        train_loss = 0.0
        for i, data in enumerate(train_loader, 0):
            inputs, labels, batch_seq_len = data[0], data[1], data[2]
            optimizer.zero_grad()
            outputs, hidden = model(inputs, batch_seq_len)
            loss = criterion(outputs, labels)
            loss.backward()
            optimizer.step()
            top1.update((outputs.argmax(1) == labels).float().mean().item(), inputs.size(0))
            train_loss += loss.item()
            postfix = {"epoch": epoch, "train_loss": "%.6f" % (train_loss / (i + 1)), "train_acc": "%.6f" % top1.avg}
            with open("loss.log", "a") as writer:
                writer.write(f"{epoch} {loss.item()} {top1.avg}\n")
        print(postfix)

        model.eval()
        val_acc = 0.0
        with torch.no_grad():
            val_top1 = AvgrageMeter()
            val_loss = 0.0
            for i, data in enumerate(validation_loader, 0):
                outputs, _ = model(data[0], data[2])
                loss = criterion(outputs, data[1])
                val_top1.update((outputs.argmax(1) == data[1]).float().mean().item(), data[0].size(0))
                val_loss += loss.item()
            if val_top1.avg > val_acc:
                run.save(model.state_dict(), "sentiment.pt")
            val_acc = val_top1.avg
            print({"validate_loss": "%.6f" % (val_loss / (i + 1)), "validate_acc": "%.6f" % val_top1.avg})
        scheduler.step()


if __name__ == "__main__":
    set_seed(1)
    train()
