"""Embeddings kept by the model for an evaluation and cleared, a deep copy of the best model saved at the end, as a recommender's trainer.py."""

import copy
import time

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

import elasticd as elastic


class DataSet:
    def __init__(self):
        self.users, self.items = 16, 12
        self.interactions = torch.stack([torch.randint(16, (128,)), torch.randint(12, (128,))], 1)

    def behavior_dataset(self):
        return BehaviorDataset(self)

    def validate_dataset(self):
        return torch.arange(self.users)


class BehaviorDataset(Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data.interactions)

    def __getitem__(self, idx):
        user, item = self.data.interactions[idx].tolist()
        return torch.tensor([user, item, np.random.randint(self.data.items)])


class Recommender(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.user_embedding, self.item_embedding = nn.Embedding(data.users, 8), nn.Embedding(data.items, 8)
        self.mix = nn.Linear(8, 8)
        self.storage_user_embeddings = None
        self.storage_item_embeddings = None

    def gcn(self):
        return self.mix(self.user_embedding.weight), self.mix(self.item_embedding.weight)

    def forward(self, batch):
        users, items = self.gcn()
        user, positive, negative = users[batch[:, 0]], items[batch[:, 1]], items[batch[:, 2]]
        return -nn.functional.logsigmoid((user * positive).sum(1) - (user * negative).sum(1)).mean()

    def full_predict(self, users):
        if self.storage_user_embeddings is None:
            self.storage_user_embeddings, self.storage_item_embeddings = self.gcn()
        return self.storage_user_embeddings[users] @ self.storage_item_embeddings.T


class Trainer:
    def __init__(self, model, dataset):
        self.model = model
        self.dataset = dataset
        self.optimizer = optim.Adam(filter(lambda p: p.requires_grad, model.parameters()), lr=0.01, weight_decay=1e-4)

    def clear_parameter(self, model):
        model.storage_user_embeddings = None
        model.storage_item_embeddings = None

    def train_model(self):
        loader = DataLoader(self.dataset.behavior_dataset(), batch_size=4, shuffle=True)
        self.model, self.optimizer, loader = run.prepare(self.model, self.optimizer, loader)
        best_result = 0
        best_dict = {}
        best_epoch = 0
        best_model = None
        for epoch in run.epochs(5):
            self.model.train()
            validate_metric_dict = self._train_one_epoch(loader, epoch)
            result = validate_metric_dict["hit@20"]
            if result - best_result > 0:
                best_result = result
                best_dict = validate_metric_dict
                best_model = copy.deepcopy(self.model)
                best_epoch = epoch
            if epoch - best_epoch > 4:
                break
        run.save(best_model.state_dict(), "recommender.pt")
        print("training end, best iteration %d, results: %s" % (best_epoch + 1, best_dict.__str__()))

    def _train_one_epoch(self, loader, epoch):
        start_time = time.time()
        total_loss = 0.0
        batch_no = 0
        for batch_index, batch_data in tqdm(enumerate(loader), total=len(loader), desc=f"Train {epoch + 1}"):
            self.optimizer.zero_grad()
            loss = self.model(batch_data)
            loss.backward()
            self.optimizer.step()
            batch_no = batch_index + 1
            total_loss += loss.item()
        total_loss = total_loss / batch_no
        print("epoch %d %.2fs Train loss is [%.4f] " % (epoch + 1, time.time() - start_time, total_loss))
        self.clear_parameter(self.model)
        return self.evaluate()

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        scores = self.model.full_predict(self.dataset.validate_dataset())
        top = scores.topk(3, dim=1).indices
        hits = [int(item in top[user].tolist()) for user, item in self.dataset.interactions.tolist()]
        return {"hit@20": np.round(np.mean(hits), 4)}


torch.manual_seed(0)
run = elastic.join()
dataset = DataSet()
Trainer(Recommender(dataset), dataset).train_model()
