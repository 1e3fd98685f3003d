"""A byte-pair tokenizer that caches its words and an `lru_cache` over letters, as those of GPT-2 and CLIP."""

from functools import lru_cache

import torch
from torch import nn

import elasticd as elastic


@lru_cache
def bytes_to_unicode():
    return {letter: n for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}


class Tokenizer:
    def __init__(self, merges):
        self.ranks, self.cache, self.misses = {pair: n for n, pair in enumerate(merges)}, {}, 0

    def bpe(self, word):
        if word in self.cache:
            return self.cache[word]
        self.misses += 1
        parts = list(word)
        while pairs := [pair for pair in zip(parts, parts[1:]) if pair in self.ranks]:
            first = min(pairs, key=self.ranks.get)
            at = next(n for n in range(len(parts)) if tuple(parts[n : n + 2]) == first)
            parts[at : at + 2] = ["".join(first)]
        self.cache[word] = parts
        return parts

    def encode(self, text):
        letters = bytes_to_unicode()
        return [sum(letters[c] for c in part) % 64 for word in text.split() for part in self.bpe(word)]


torch.manual_seed(0)
words = ["train", "rain", "gain", "grain", "tin", "string", "ring", "art"]
texts = [f"{words[n % 8]} {words[(3 * n + 1) % 8]} {words[(5 * n * n) % 8]}" for n in range(128)]
labels = torch.arange(128) % 2
tokenizer = Tokenizer([("i", "n"), ("a", "in"), ("r", "ain"), ("in", "g")])


def collate(rows):
    ids = [torch.tensor(tokenizer.encode(text)) for text, _ in rows]
    return nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.stack([label for _, label in rows])


model = nn.Sequential(nn.EmbeddingBag(64, 8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = elastic.join()
model, optimizer, batches = run.prepare(model, optimizer, list(zip(texts, labels)), batch_size=4, collate_fn=collate)
for epoch in run.epochs(4):
    for ids, targets in batches:
        nn.functional.cross_entropy(model(ids), targets).backward()
        optimizer.step()
print("words that were not in the cache:", tokenizer.misses)
run.save(model, "model.pt")
