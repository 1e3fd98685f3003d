"""transformers.Trainer: `python -m examples.frameworks.trainer model.pt`."""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainingArguments

from elasticd.integrations.transformers import ElasticTrainer as Trainer
from examples.frameworks import task

TIMES = ("runtime", "per_second")  # name endings of logged values that measure time


def train() -> tuple[Any, dict[str, Any]]:
    model = task.build()
    rows = task.train_rows()
    arguments = TrainingArguments(
        output_dir="trainer",
        per_device_train_batch_size=task.BATCH_SIZE,
        num_train_epochs=task.EPOCHS,
        learning_rate=task.LEARNING_RATE,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        max_grad_norm=task.MAX_NORM,
        seed=task.SEED,
        logging_steps=3,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=task.test_rows(),
        callbacks=[EarlyStoppingCallback(task.EPOCHS)],
    )
    trainer.train()
    log = [
        {name: value for name, value in entry.items() if not name.endswith(TIMES)}
        for entry in trainer.state.log_history
    ]
    return trainer, task.document(model, trainer.optimizer, log, trainer.state.global_step, len(rows))


if __name__ == "__main__":
    trainer, found = train()
    if trainer.is_world_process_zero():
        torch.save(found, sys.argv[1])
