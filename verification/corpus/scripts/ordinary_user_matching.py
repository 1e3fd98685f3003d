"""Batches cut by hand from lists, a threshold searched by F1, an end five epochs after the best, as a user matcher's train_gnn.py."""

import argparse
import time

import numpy as np
import torch
import torch.nn as nn

import elasticd as elastic


def time_now_str():
    return str(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime()))


class GNN_Match(nn.Module):
    def __init__(self, num_items, embedding_dim, drop_out):
        super().__init__()
        self.embedding = nn.Embedding(num_items, embedding_dim)
        self.fc = nn.Sequential(nn.Linear(2 * embedding_dim, 8), nn.ReLU(), nn.Dropout(drop_out), nn.Linear(8, 1))

    def forward(self, pairs):
        left = torch.stack([self.embedding(torch.tensor(pair[0])).mean(0) for pair in pairs])
        right = torch.stack([self.embedding(torch.tensor(pair[1])).mean(0) for pair in pairs])
        return torch.sigmoid(self.fc(torch.cat([left, right], 1))).view(-1)


def evaluate_validation(valid_x, valid_y, model):
    preds = model(valid_x).detach().cpu().numpy()
    best_th = 0.5
    best_F1 = 0
    for th in [t * 0.01 for t in range(100)]:
        TP = ((preds > th) & (valid_y == 1)).sum()
        FP = ((preds > th) & (valid_y == 0)).sum()
        FN = ((preds <= th) & (valid_y == 1)).sum()
        F1 = 2 * TP / max(1, 2 * TP + FP + FN)
        if F1 > best_F1:
            best_th = th
            best_F1 = F1
    print(time_now_str() + " F1: " + str(best_F1) + " best Th: " + str(best_th))
    return best_F1, best_th


if __name__ == "__main__":
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--weight-decay", type=float, default=1e-5)
    args = parser.parse_args([])
    np.random.seed(0)
    x, y = [], []
    for _ in range(160):
        pair = [np.random.randint(20, size=np.random.randint(2, 6)).tolist() for _ in range(2)]
        x.append(pair)
        y.append(float(np.mean(pair[0]) > np.mean(pair[1])))
    x_train, train_y, x_valid, valid_y = x[:128], y[:128], x[128:], np.array(y[128:])
    torch.manual_seed(0)
    run = elastic.join()
    user_macth_model = GNN_Match(20, 6, 0.2)
    criterion = nn.BCELoss()
    optimizer = torch.optim.Adam(user_macth_model.parameters(), lr=0.01, weight_decay=args.weight_decay)

    def collate(samples):
        return [pair for pair, _ in samples], torch.Tensor([label for _, label in samples])

    user_macth_model, optimizer, batches = run.prepare(
        user_macth_model,
        optimizer,
        list(zip(x_train, train_y)),
        batch_size=args.batch_size,
        shuffle=False,
        collate_fn=collate,
    )
    threshold = 0.5
    best_F1 = 0
    best_epoch = 0
    for epoch in run.epochs(args.epochs):
        user_macth_model.train()
        loss_all = 0
        i = 0
        for input_x, input_y in batches:
            optimizer.zero_grad()
            out = user_macth_model(input_x)
            loss = criterion(out, input_y)
            loss.backward()
            optimizer.step()
            loss_all = loss.item() + loss_all
            if i % 100 == 0:
                print(time_now_str() + ": " + str(epoch) + " epoch " + str(i) + " index,loss: ", loss.item())
            i += 1
        print(time_now_str() + ": " + str(epoch) + " epoch loss ", loss_all)
        user_macth_model.eval()
        F1, th = evaluate_validation(x_valid, valid_y, user_macth_model)
        if F1 > best_F1:
            best_F1 = F1
            run.save(user_macth_model.state_dict(), "matcher.pt")
            best_epoch = epoch
        if epoch - best_epoch > 5:
            print(time_now_str() + " early stopping")
            break
