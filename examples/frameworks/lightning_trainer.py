"""Lightning's Trainer: `python -m examples.frameworks.lightning_trainer model.pt`."""

from __future__ import annotations

import os
import sys
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

from elasticd.integrations.lightning import ElasticStrategy
from examples.frameworks import task


class Module(pl.LightningModule):
    """The task's network, with its logged values."""

    def __init__(self) -> None:
        super().__init__()
        self.net = task.build()

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.net(**batch)["loss"]
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.log("test_loss", self.net(**batch)["loss"])

    def configure_optimizers(self) -> Any:
        optimizer = task.adamw(self)
        return [optimizer], [{"scheduler": task.cosine(optimizer), "interval": "step"}]


class Kept(Callback):
    """All logged values, step by step and epoch by epoch; they travel with the job, as every callback's state does."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows = state_dict["rows"]

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self.rows.append([trainer.global_step, float(trainer.callback_metrics["loss_step"]), rate])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.sanity_checking:
            self.rows.append([f"epoch {trainer.current_epoch}", float(trainer.callback_metrics["test_loss"])])

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.rows.append([f"mean {trainer.current_epoch}", float(trainer.callback_metrics["loss_epoch"])])


def train() -> tuple[Any, dict[str, Any]]:
    module, kept, strategy = Module(), Kept(), ElasticStrategy()
    rows = task.train_rows(strategy.run.virtual_workers)
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=strategy,
        max_epochs=task.EPOCHS,
        gradient_clip_val=task.MAX_NORM,
        precision=os.environ.get("PRECISION", "32-true"),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            kept,
            EarlyStopping("test_loss", patience=8),
            ModelCheckpoint("checkpoints", "{epoch}", monitor="test_loss", save_weights_only=True),
        ],
    )
    train_loader = DataLoader(rows, batch_size=task.BATCH_SIZE, shuffle=True)
    trainer.fit(module, train_loader, DataLoader(task.test_rows(), batch_size=20))
    found = task.document(module, trainer.optimizers[0], kept.rows, trainer.global_step, len(rows))
    return strategy.run, found


if __name__ == "__main__":
    run, found = train()
    run.save(found, sys.argv[1])
