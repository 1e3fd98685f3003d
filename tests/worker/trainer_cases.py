"""transformers.Trainer in a job. Each case returns its final weights and its log."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    TrainerCallback,
    TrainingArguments,
)

from elasticd.integrations.transformers import ElasticTrainer
from elasticd.worker.run import Run

WORDS = 64


class Text(torch.utils.data.Dataset[dict[str, Any]]):
    """Random tokens, rows of different lengths."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(6, 24, (size,), generator=generator).tolist()
        self._rows = [torch.randint(1, WORDS, (length,), generator=generator) for length in lengths]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self._rows[index]}


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def gpt2(dropout: float = 0.1) -> GPT2LMHeadModel:
    torch.manual_seed(1)
    small = {"vocab_size": WORDS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    return GPT2LMHeadModel(GPT2Config(**small, **drops, bos_token_id=1, eos_token_id=1))


def train(
    run: Run, model: Any = None, size: int = 90, callbacks: Any = (), kind: Any = ElasticTrainer, **arguments: Any
) -> list[Any]:
    """Six steps per epoch, the last of them short: some virtual workers have no sample in it."""
    sys.stdout = sys.stderr  # the other one belongs to `training_ranks`
    options = {
        "output_dir": str(Path(tempfile.gettempdir(), f"trainer-{os.getppid()}")),
        "per_device_train_batch_size": 4,
        "num_train_epochs": 4,
        "learning_rate": 3e-3,
        "warmup_steps": 5,
        "logging_steps": 3,
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "max_grad_norm": 0.5,
        "include_num_input_tokens_seen": "non_padding",
    }
    trainer = kind(
        run=run,
        model=model or gpt2(),
        args=TrainingArguments(**{**options, **arguments}),
        train_dataset=Text(size, 0),
        eval_dataset=Text(20, 1),
        data_collator=collate,
        callbacks=list(callbacks),
    )
    trainer.train()
    assert trainer.is_world_process_zero() == run.is_leader
    state = trainer.state
    log = [
        {name: value for name, value in entry.items() if not name.endswith(("runtime", "per_second"))}
        for entry in state.log_history
    ]
    kept = [state.global_step, state.epoch, state.total_flos, state.num_input_tokens_seen, state.best_global_step]
    weights = {name: value for name, value in trainer.model.state_dict().items() if value.is_floating_point()}
    return [weights, trainer.optimizer.state_dict(), log, kept]


def tokens(run: Run) -> list[Any]:
    """A language model: the loss is a mean over the tokens of the step."""
    return train(run, size=82)


def ends_in_an_epoch(run: Run) -> list[Any]:
    return train(run, max_steps=20, num_train_epochs=1, lr_scheduler_type="cosine", eval_strategy="steps", eval_steps=4)


def half_precision(run: Run) -> list[Any]:
    return train(run, bf16=True, logging_strategy="epoch", train_sampling_strategy="group_by_length")


class Odd(TrainerCallback):  # type: ignore[misc]
    """Changes the global gradient, and reads the callbacks' arguments."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                parameter.grad.add_(0.01 * parameter.detach())


def gradients_that_a_callback_changes(run: Run) -> list[Any]:
    model = gpt2()
    return train(run, model, callbacks=[Odd(model)], dataloader_num_workers=1, dataloader_drop_last=True)


class Early(ElasticTrainer):
    """With its own loss, which ignores the given number of items."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten(), ignore_index=-100
        )
        return (loss, outputs) if return_outputs else loss


def stops_early(run: Run) -> list[Any]:
    return train(
        run,
        kind=Early,
        callbacks=[EarlyStoppingCallback(7, early_stopping_threshold=10.0)],  # no metric ever improves that much
        num_train_epochs=30,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=3,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0},
    )


class Leading(TrainerCallback):  # type: ignore[misc]
    """Records whether this worker leads at the beginning of the tenth step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.then = False

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.then |= self._run.is_leader and state.global_step == 9


def the_leader_s_files_are_lost(run: Run) -> list[Any]:
    """Each worker has a separate directory. The first leader leaves when it has written the ninth step's checkpoint."""
    directory, leading = Path(tempfile.mkdtemp()), Leading(run)
    found = train(run, callbacks=[leading], output_dir=str(directory), save_strategy="steps", save_steps=3)
    if leading.then:
        kept = json.loads((directory / "checkpoint-9" / "trainer_state.json").read_text())
        assert kept["global_step"] == 9
        weights = load_file(directory / "checkpoint-9" / "model.safetensors")
        assert weights.keys() < found[0].keys()
    return found


def adapters(run: Run) -> list[Any]:
    """Low-rank adapters of a frozen model."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return train(run, get_peft_model(gpt2(), LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"])))
