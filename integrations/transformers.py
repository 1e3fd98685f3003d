"""transformers.Trainer (version 5.23): `from elasticd.integrations.transformers import ElasticTrainer as Trainer`.

The host counts global steps: it gets one item for each, and its `training_step` runs inside it once for each virtual
worker. The loss is the mean over all labels of the step that are not ignored, or over its samples where the model does
not count labels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers import GreedyLR, Seq2SeqTrainer

import elasticd as elastic

from .passive import Passive
from .trainer_arguments import live_arguments, refuse_arguments, refuse_search
from .trainer_files import LeadersFiles
from .trainer_state import CarriedState, Follow, Passes

UNIT = 1024  # items: a loss is scaled by their number in units of this, which keeps it small and costs no bit


class ElasticTrainer(LeadersFiles):
    """A Trainer in a job with workers that join and leave. With another Trainer as a second base class, that Trainer
    becomes elastic.
    """

    optimizer: Any
    control: Any

    def __init__(self, *positional: Any, run: elastic.Run | None = None, **named: Any) -> None:
        """run: the job, if the script has called `elastic.join` itself. Raises UserError, naming the argument, for
        arguments that cannot work.
        """
        arguments = named.get("args", positional[1] if len(positional) > 1 else None)
        refuse_arguments(arguments)
        self.run = run or elastic.join(seed=getattr(arguments, "seed", 42))
        self.looping = False
        super().__init__(*positional, **named)
        self.loss_is_scaled_for_ga = False  # each is a mean over its own micro-batch here
        self.carried = CarriedState(self)
        live_arguments(self.args, lambda: self.is_world_process_zero())
        self.callback_handler.callbacks.insert(0, Follow(self))
        self._before_step = self.callback_handler.on_pre_optimizer_step  # it belongs before the runtime's update
        self.callback_handler.on_pre_optimizer_step = lambda args, state, control: control

    hyperparameter_search = refuse_search

    # -- the beginning, in the host's order: its data loader, its state, its optimizer and scheduler

    def train(self, resume_from_checkpoint: Any = None, *rest: Any, **named: Any) -> Any:
        refuse_arguments(self.args, resume_from_checkpoint)
        return super().train(None, *rest, **named)

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        run = self.run
        if self.accelerator.scaler is not None:
            self.accelerator.scaler = run.scaler(self.accelerator.scaler)
        optimizer = self.create_optimizer()
        run.register("transformers.Trainer", self.carried.give, self.carried.take)
        run.prepare(
            self.model,
            optimizer,
            dataloader,
            normalize="items",
            max_grad_norm=args.max_grad_norm or math.inf,
            before_update=self._before_update,
            after_update=self._after_update,
        )
        self.passes = Passes(run.steps(), dataloader.dataset)
        return super().set_initial_training_values(args, self.passes)

    def get_total_train_batch_size(self, args: Any) -> int:
        return int(super().get_total_train_batch_size(args) * self.run.virtual_workers)

    def _init_training_state(self, max_steps: int, per_epoch: int, epochs: int, _: Any, trial: Any) -> tuple[int, int]:
        super()._init_training_state(max_steps, per_epoch, epochs, None, trial)
        scheduler = self.carried.scheduler = self.create_scheduler(max_steps)
        self._created_lr_scheduler = False  # otherwise the host would discard it
        position = self.run.begin(epochs, max_steps)
        self.run.on_leader(self.lead)
        self.optimizer = Passive(self.optimizer)
        if not isinstance(scheduler, ReduceLROnPlateau | GreedyLR):
            self.lr_scheduler = Passive(scheduler, get_last_lr=lambda: [self.carried.rate])
        return position.epoch, 0

    def _prepare_for_training(self, max_steps: int, *_: Any) -> Any:
        return super()._prepare_for_training(max_steps, self.passes, None)

    # -- one global step

    def get_batch_samples(self, epoch_iterator: Any, *_: Any) -> tuple[list[Any], None]:
        step = next(epoch_iterator, None)
        return [] if step is None else [step], None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        for batch in inputs:
            items = self._get_num_items_in_batch([batch], self.args.device)
            weight = self.run.weight if items is None else float(items) / UNIT
            self.current_gradient_accumulation_steps = 1 / weight if weight else math.inf
            seen = self.state.num_input_tokens_seen
            super()._track_num_input_tokens(batch)
            tokens, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen - seen, seen
            flops = float(super().floating_point_ops(batch))
            loss = super().training_step(model, batch, None if items is None else items.clamp(min=1))
            self.run.share(loss=loss, items=weight, tokens=tokens, flops=flops)
        shared = self.run.shared
        items = shared["items"].total if shared else 0.0
        return torch.tensor(shared["loss"].total / items if items else 0.0, device=self.args.device)

    def floating_point_ops(self, inputs: Any) -> float:
        return self.run.shared["flops"].total if self.run.shared else 0.0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        self.state.num_input_tokens_seen += int(self.run.shared["tokens"].total) if self.run.shared else 0

    def _get_grad_norm(self, *_: Any, **__: Any) -> float | None:
        return self.carried.norm

    _clip_grad_norm = _get_grad_norm

    def _before_update(self) -> None:
        self.control = self._before_step(self.args, self.state, self.control)

    def _after_update(self) -> None:
        self.carried.rate, self.carried.norm = self.run.last_lr[0], self.run.grad_norm
        self.unsaved = None
        if not isinstance(self.carried.scheduler, ReduceLROnPlateau | GreedyLR):
            self.carried.scheduler.step()

    # -- after a global step

    def _maybe_log_save_evaluate(self, tr_loss: Any, norm: Any, *rest: Any, learning_rate: Any = None) -> None:
        if not self.run.is_behind:
            super()._maybe_log_save_evaluate(tr_loss, self.carried.norm, *rest, learning_rate=self.carried.rate)

    def _evaluate(self, *arguments: Any, skip_scheduler: bool = False) -> Any:
        if skip_scheduler and self.run.steps_done:
            return {}  # `eval_on_start`, in a job that has begun
        return super()._evaluate(*arguments, skip_scheduler=skip_scheduler)

    def _finalize_training(self, *arguments: Any) -> Any:
        self.run.finish()
        return super()._finalize_training(*arguments)


class ElasticSeq2SeqTrainer(ElasticTrainer, Seq2SeqTrainer):
    """`ElasticTrainer` on the base of Seq2SeqTrainer."""
