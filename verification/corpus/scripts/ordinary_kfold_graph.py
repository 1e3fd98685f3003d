"""Five folds, each with a model and an optimizer of its own, as a graph network's train.py for miRNA and diseases."""

import random
import time

import numpy as np
import torch
import torch.nn as nn
from sklearn.model_selection import KFold

import elasticd as elastic


class Graph(nn.Module):
    def __init__(self, hid_dim, dropout):
        super().__init__()
        self.left, self.right = nn.Embedding(12, hid_dim), nn.Embedding(12, hid_dim)
        self.fc, self.dropout = nn.Linear(hid_dim, 1), nn.Dropout(dropout)

    def forward(self, src, dst):
        return torch.sigmoid(self.fc(self.dropout(self.left(src) * self.right(dst))))


def Train(epochs, in_size, dropout, lr, wd, random_seed):
    random.seed(random_seed)
    np.random.seed(random_seed)
    torch.manual_seed(random_seed)
    samples = torch.stack([torch.randint(12, (160,)), torch.randint(12, (160,)), torch.randint(2, (160,))], 1)
    acc_result = []
    run = elastic.join()
    i = 0
    kf = KFold(n_splits=5, shuffle=True, random_state=random_seed)
    for train_idx, test_idx in kf.split(samples):
        i += 1
        print("Training for Fold", i)
        model = Graph(in_size, dropout)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=wd)
        loss = nn.BCELoss()
        model, optimizer, batches = run.prepare(model, optimizer, samples[train_idx], batch_size=32)
        for epoch in run.epochs(epochs):
            start = time.time()
            model.train()
            for edges in batches:
                score_train = model(edges[:, 0], edges[:, 1])
                loss_train = loss(score_train, edges[:, 2:].float())
                optimizer.zero_grad()
                loss_train.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                test = samples[test_idx]
                score_val = model(test[:, 0], test[:, 1])
                acc_val = ((score_val > 0.5).long() == test[:, 2:]).float().mean().item()
            if (epoch + 1) % 10 == 0:
                print("Epoch:", epoch + 1, "Acc: %.4f" % acc_val, "Time: %.2f" % (time.time() - start))
        acc_result.append(acc_val)
        run.save(model.state_dict(), f"fold_{i}.pt")
    print("Accuracy mean: %.4f, variance: %.4f" % (np.mean(acc_result), np.std(acc_result)))


Train(epochs=4, in_size=8, dropout=0.1, lr=0.01, wd=1e-4, random_seed=1)
