"""A Trainer with callbacks, `iter_num` and `iter_dt`, whose callback writes text and saves, as minGPT's trainer.py."""

import time
from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F

import elasticd as elastic


class CharDataset(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data) - 9

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + 9]
        return torch.tensor(chunk[:-1]), torch.tensor(chunk[1:])


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.ln, self.head = nn.Embedding(16, 12), nn.LayerNorm(12), nn.Linear(12, 16)

    def forward(self, idx, targets=None):
        logits = self.head(self.ln(self.wte(idx).cumsum(1)))
        return logits, None if targets is None else F.cross_entropy(logits.view(-1, 16), targets.view(-1))

    @torch.no_grad()
    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            logits, _ = self(idx)
            idx = torch.cat([idx, torch.multinomial(F.softmax(logits[:, -1], dim=-1), 1)], 1)
        return idx


class Trainer:
    def __init__(self, model, train_dataset):
        self.model = model
        self.optimizer = None
        self.train_dataset = train_dataset
        self.callbacks = defaultdict(list)
        self.iter_num = 0
        self.iter_time = 0.0
        self.iter_dt = 0.0

    def set_callback(self, onevent, callback):
        self.callbacks[onevent] = [callback]

    def trigger_callbacks(self, onevent):
        for callback in self.callbacks.get(onevent, []):
            callback(self)

    def run(self):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-3, betas=(0.9, 0.95))
        model, self.optimizer, train_loader = elastic_run.prepare(
            self.model, self.optimizer, self.train_dataset, batch_size=4
        )
        model.train()
        self.iter_num = 0
        self.iter_time = time.time()
        for epoch in elastic_run.epochs(4):
            for x, y in train_loader:
                logits, self.loss = model(x, y)
                model.zero_grad(set_to_none=True)
                self.loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                self.optimizer.step()
                self.trigger_callbacks("on_batch_end")
                self.iter_num += 1
                tnow = time.time()
                self.iter_dt = tnow - self.iter_time
                self.iter_time = tnow


if __name__ == "__main__":
    torch.manual_seed(3407)
    text = [(i * i + i // 3) % 16 for i in range(137)]
    elastic_run = elastic.join()
    model = GPT()
    trainer = Trainer(model, CharDataset(text))

    def batch_end_callback(trainer):
        if trainer.iter_num % 4 == 0:
            print(f"iter_dt {trainer.iter_dt * 1000:.2f}ms; iter {trainer.iter_num}: loss {trainer.loss.item():.5f}")
        if trainer.iter_num % 10 == 0:
            model.eval()
            with torch.no_grad():
                print(model.generate(torch.tensor([[1, 2]]), 8)[0].tolist())
            elastic_run.save(model.state_dict(), "model.pt")
            model.train()

    trainer.set_callback("on_batch_end", batch_end_callback)
    trainer.run()
