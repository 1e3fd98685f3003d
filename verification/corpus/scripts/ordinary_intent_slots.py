"""A Trainer class that keeps `_max_validation_loss` and saves a checkpoint with its arguments, as an intent and slot classifier's trainer.py."""

import argparse
import math

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, random_split
from tqdm import tqdm

import elasticd as elastic


class NLUDataset(Dataset):
    def __init__(self):
        self.words = torch.randint(12, (160, 6))
        self.intents = self.words.sum(1) % 3
        self.tags = (self.words > 6).long()

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"words": self.words[i]}, {"intents": self.intents[i], "tags": self.tags[i], "text": f"sentence {i}"}


class JointModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.gru = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
        self.intent, self.slot = nn.Linear(8, 3), nn.Linear(8, 2)

    def forward(self, words, intent_label_ids, slot_labels_ids):
        hidden, last = self.gru(self.embedding(words))
        intent, slots = self.intent(last[0]), self.slot(hidden)
        loss = nn.functional.cross_entropy(intent, intent_label_ids)
        loss = loss + nn.functional.cross_entropy(slots.reshape(-1, 2), slot_labels_ids.reshape(-1))
        return loss, (intent, slots)


class Trainer:
    def __init__(self, args, model, optimizer, dataset):
        self.args = args
        self.model = model
        self.optimizer = optimizer
        self._max_validation_loss = 6.0
        self._init_data_loaders(args, dataset)

    def _init_data_loaders(self, args, dataset):
        train_size = math.ceil(len(dataset) * 0.8)
        dataset_train, dataset_val = random_split(dataset, [train_size, len(dataset) - train_size])
        batch_sampler_train = BatchSampler(RandomSampler(dataset_train), args.batch_size, drop_last=True)
        batch_sampler_val = BatchSampler(SequentialSampler(dataset_val), args.batch_size, drop_last=False)
        self.data_loader_train = DataLoader(dataset_train, batch_sampler=batch_sampler_train)
        self.data_loader_val = DataLoader(dataset_val, batch_sampler=batch_sampler_val)

    def train(self):
        self.model, self.optimizer, self.data_loader_train = run.prepare(
            self.model, self.optimizer, self.data_loader_train
        )
        for epoch in run.epochs(self.args.epochs):
            self.train_one_epoch(epoch)
            validation_stats = self.evaluate()
            self._after_evaluation(validation_stats, epoch)

    def _after_evaluation(self, stats, epoch):
        if stats["avg_loss"] < self._max_validation_loss:
            self._max_validation_loss = stats["avg_loss"]
            run.save(
                {
                    "model": self.model.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "epoch": epoch,
                    "args": vars(self.args),
                },
                "checkpoint.pt",
            )
            print(f"model saved after {epoch} epoch with validation loss {self._max_validation_loss:.4f}")

    def train_one_epoch(self, epoch):
        self.model.train()
        loader_desc = "Epoch [{:d}]: loss = {:.4f}, accuracy (intent = {:.4f})"
        train_iterator = tqdm(self.data_loader_train, desc=loader_desc.format(epoch, 0.0, 0.0))
        intent_total = 0
        intent_correct = 0
        total_loss = 0
        completed_batch = 0
        for idx, samples in enumerate(train_iterator, 1):
            inputs, targets = samples
            inputs.update({"intent_label_ids": targets["intents"], "slot_labels_ids": targets["tags"]})
            losses, (intent_logits, slot_logits) = self.model(**inputs)
            loss_val = losses.item()
            total_loss += loss_val
            intent_total += targets["intents"].shape[0]
            intent_correct += torch.sum(torch.argmax(intent_logits.detach(), dim=1) == targets["intents"]).item()
            self.optimizer.zero_grad()
            losses.backward()
            self.optimizer.step()
            if idx % 2 == 0:
                train_iterator.set_description(loader_desc.format(epoch, loss_val, intent_correct / intent_total))
            completed_batch += 1
        print(f"{intent_correct}/{intent_total} correct intents, a total loss of {total_loss} in {completed_batch}")
        return {"avg_loss": total_loss / completed_batch, "intent_acc": intent_correct / intent_total}

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        total_loss = 0
        completed_batch = 0
        for inputs, targets in self.data_loader_val:
            losses, _ = self.model(inputs["words"], targets["intents"], targets["tags"])
            total_loss += losses.item()
            completed_batch += 1
        return {"avg_loss": total_loss / completed_batch}


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", default=4, type=int)
parser.add_argument("--batch_size", default=4, type=int)
torch.manual_seed(0)
run = elastic.join()
model = JointModel()
trainer = Trainer(parser.parse_args([]), model, torch.optim.Adam(model.parameters(), lr=0.01), NLUDataset())
trainer.train()
