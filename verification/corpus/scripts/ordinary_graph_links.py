"""A model and a ModuleDict of decoders, ReduceLROnPlateau and an end by the mean of the training losses, as a link predictor's trainer.py."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic


class HeteroGINE(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Linear(6, 8), nn.Linear(6, 8)

    def forward(self, x_dict):
        return {"source": torch.relu(self.source(x_dict["source"])), "target": torch.relu(self.target(x_dict["target"]))}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.bilinear = nn.Bilinear(8, 8, 1)

    def forward(self, source, target):
        return self.bilinear(source, target).squeeze(-1)


class Trainer:
    def __init__(self, model, decoders, train_cfg, optimizer, scheduler):
        self.model = model
        self.decoders = nn.ModuleDict({str(k): v for k, v in decoders.items()})
        params = list(model.parameters()) + [p for decoder in decoders.values() for p in decoder.parameters()]
        self.opt = optimizer(params)
        self.sched = scheduler(self.opt)
        self.train_cfg = train_cfg

    def train(self, loader):
        both = nn.ModuleDict({"model": self.model, "decoders": self.decoders})
        both, self.opt, loader = run.prepare(both, self.opt, loader)
        best_loss = float("inf")
        target_loss = self.train_cfg.target_loss
        pbar = tqdm(run.epochs(self.train_cfg.max_epochs), desc="Training", unit="epoch")
        for epoch in pbar:
            epoch_loss = 0.0
            for source, target, linked in loader:
                both.train()
                self.opt.zero_grad()
                embeddings = self.model({"source": source, "target": target})
                total_loss = torch.tensor(0.0)
                for i, relation in enumerate(self.train_cfg.relations):
                    logits = self.decoders[str(relation)](embeddings["source"], embeddings["target"])
                    total_loss = total_loss + nn.functional.binary_cross_entropy_with_logits(logits, linked[:, i])
                total_loss.backward()
                self.opt.step()
                epoch_loss += float(total_loss.detach().item())
            epoch_loss /= max(len(loader), 1)
            best_loss = min(best_loss, epoch_loss)
            pbar.set_postfix({"loss": f"{epoch_loss:.4e}", "best": f"{best_loss:.4e}"})
            if self.sched.__class__.__name__ == "ReduceLROnPlateau":
                self.sched.step(epoch_loss)
            else:
                self.sched.step()
            if best_loss <= target_loss:
                break
        run.save(both.state_dict(), "links.pt")
        return best_loss


torch.manual_seed(0)
relations = [("source", "near", "target"), ("source", "over", "target")]
source, target = torch.randn(128, 6), torch.randn(128, 6)
linked = torch.stack([(source * target).sum(1) > 0, source[:, 0] > target[:, 0]], 1).float()
run = elastic.join()
trainer = Trainer(
    HeteroGINE(),
    {relation: Decoder() for relation in relations},
    SimpleNamespace(max_epochs=4, target_loss=1e-4, relations=relations),
    lambda params: torch.optim.AdamW(params, lr=0.01),
    lambda opt: torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0),
)
trainer.train(DataLoader(TensorDataset(source, target, linked), batch_size=4, shuffle=True))
