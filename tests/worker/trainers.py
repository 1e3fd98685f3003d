"""Trainers of `test_trainer_alone`, elastic and plain. Loads transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Seq2SeqTrainer as Seq2SeqTrainer
from transformers import Trainer, TrainerCallback, TrainingArguments

from elasticd.integrations.transformers import ElasticSeq2SeqTrainer as ElasticSeq2SeqTrainer
from elasticd.integrations.transformers import ElasticTrainer
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run
from tests.worker import trainer_cases as cases


def arguments(directory: Path, **named: Any) -> TrainingArguments:
    options: dict[str, Any] = {
        "output_dir": str(directory),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 3e-3,
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**{**options, **named})


def a_run() -> Run:
    return Run(LocalControl.alone(4), None, 4, 0)


def trainer(directory: Path, kind: Any = ElasticTrainer, callbacks: Any = (), model: Any = None, **named: Any) -> Any:
    return kind(
        model=model or cases.gpt2(dropout=0.0),
        args=arguments(directory, **named),
        train_dataset=cases.Text(82, 0),
        eval_dataset=cases.Text(20, 1),
        data_collator=cases.collate,
        callbacks=list(callbacks),
        **({"run": a_run()} if issubclass(kind, ElasticTrainer) else {}),
    )


class Told(TrainerCallback):  # type: ignore[misc]
    """Records the callbacks' arguments."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.norms: list[float] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        self.norms.append(float(torch.nn.utils.get_total_norm(gradients)))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.steps.append((state.global_step, state.epoch))


class Same(Trainer):  # type: ignore[misc]
    """The plain Trainer with the micro-batches of the elastic one: as many as it accumulates."""

    batches: list[list[dict[str, Any]]] = []

    def get_train_dataloader(self) -> Any:
        return [batch for step in self.batches for batch in step]


def losses(host: Any, name: str = "loss") -> list[float]:
    return [entry[name] for entry in host.state.log_history if name in entry]
