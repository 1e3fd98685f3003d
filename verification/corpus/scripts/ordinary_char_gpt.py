"""A GPT with `iter_num`, a learning rate by hand, `estimate_loss` and the best checkpoint in the loop, as a fork of nanoGPT's train.py."""

import math
import time

import torch
from torch import nn

import elasticd as elastic

eval_interval, eval_iters, log_interval = 10, 2, 1
learning_rate, warmup_iters, lr_decay_iters, min_lr = 1e-2, 4, 32, 1e-3
block_size = 8
torch.manual_seed(1337)
tokens = (torch.arange(2000) * 7 % 13) + torch.randint(3, (2000,))
train_data, val_data = tokens[:1800], tokens[1800:]


class Blocks(torch.utils.data.Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        i = torch.randint(len(train_data) - block_size, (1,)).item()
        return train_data[i : i + block_size], train_data[i + 1 : i + 1 + block_size]


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(16, 16), nn.Embedding(block_size, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.lm_head = nn.Linear(16, 16)

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.block(self.wte(idx) + self.wpe(torch.arange(idx.size(1))), src_mask=mask, is_causal=True)
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.view(-1, 16), targets.reshape(-1))


def get_batch(split):
    data = train_data if split == "train" else val_data
    ix = torch.randint(len(data) - block_size, (4,))
    return torch.stack([data[i : i + block_size] for i in ix]), torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ["train", "val"]:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            logits, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * it / warmup_iters
    if it > lr_decay_iters:
        return min_lr
    decay_ratio = (it - warmup_iters) / (lr_decay_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * decay_ratio)) * (learning_rate - min_lr)


run = elastic.join()
model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
model, optimizer, batches = run.prepare(model, optimizer, Blocks(), batch_size=4)
iter_num = 0
best_val_loss = 1e9
t0 = time.time()
for epoch in run.epochs(4):
    for X, Y in batches:
        lr = get_lr(iter_num)
        for param_group in optimizer.param_groups:
            param_group["lr"] = lr
        if iter_num % eval_interval == 0:
            losses = estimate_loss()
            print(f"step {iter_num}: train loss {losses['train']:.4f}, val loss {losses['val']:.4f}")
            if losses["val"] < best_val_loss:
                best_val_loss = losses["val"]
                if iter_num > 0:
                    checkpoint = {"model": model.state_dict(), "iter_num": iter_num, "best_val_loss": best_val_loss}
                    run.save(checkpoint, "ckpt.pt")
        logits, loss = model(X, Y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        t1 = time.time()
        dt = t1 - t0
        t0 = t1
        if iter_num % log_interval == 0:
            print(f"iter {iter_num}: loss {loss.item():.4f}, time {dt * 1000:.2f}ms")
        iter_num += 1
run.save(model, "model.pt")
