"""transformers.Trainer (`integrations`) with a single worker: results, written files, and refusals."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="the extra `transformers` is not installed")
pytest.importorskip("accelerate", reason="the extra `transformers` is not installed")

from transformers import Seq2SeqTrainer, Trainer, TrainerCallback, TrainingArguments

from elasticd.integrations.transformers import ElasticSeq2SeqTrainer, ElasticTrainer
from elasticd.protocol.errors import UserError
from elasticd.worker.driver import LocalControl
from elasticd.worker.run import Run

sys.path.insert(0, str(Path(__file__).parent))
cases = importlib.import_module("trainer_cases")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `elastic.join` sets it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


def test_it_trains_as_the_plain_trainer_does_that_accumulates_over_as_many_micro_batches(tmp_path: Path) -> None:
    """With full steps only: accumulation knows no steps in which some have no sample."""
    read: list[list[dict[str, Any]]] = []

    class Watching(ElasticTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            read.append([])
            return super().training_step(model, _kept(inputs, read[-1]), num_items_in_batch)

    told = Told()
    elastic = trainer(tmp_path, Watching, [told], max_steps=8, lr_scheduler_type="cosine", dataloader_drop_last=True)
    elastic.train()
    Same.batches = read
    plain = trainer(tmp_path, Same, max_steps=8, lr_scheduler_type="cosine", gradient_accumulation_steps=4)
    plain.train()
    for name in ("loss", "grad_norm", "learning_rate"):
        assert losses(elastic, name) == pytest.approx(losses(plain, name), rel=1e-4), name
    assert [step for step, _ in told.steps] == list(range(1, 9))
    assert told.norms == pytest.approx([min(1.0, norm) for norm in losses(elastic, "grad_norm")], rel=1e-3)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(
            elastic.model.state_dict()[name], value, rtol=1e-3, atol=2e-4
        )  # Adam amplifies small gradients


def _kept(step: Any, into: list[Any]) -> Any:
    for batch in step:
        into.append(batch)
        yield batch


def test_a_trainer_for_sequences_is_one_too(tmp_path: Path) -> None:
    assert issubclass(ElasticSeq2SeqTrainer, Seq2SeqTrainer)
    assert issubclass(ElasticSeq2SeqTrainer, ElasticTrainer)


def test_checkpoints_of_the_host_are_the_scripts_own_classes(tmp_path: Path) -> None:
    host = trainer(tmp_path, save_strategy="steps", save_steps=5, save_total_limit=1, max_steps=10)
    host.train()
    host.save_model()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]
    kept = torch.load(tmp_path / "checkpoint-10" / "training_args.bin", weights_only=False)
    assert type(kept) is TrainingArguments
    assert (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint-10" / "optimizer.pt").exists()


def test_tensorboard_writes_what_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    host = trainer(tmp_path, report_to=["tensorboard"], max_steps=3)
    assert not (tmp_path / "board").exists(), "before the loop nobody knows who leads"
    host.train()
    assert list((tmp_path / "board").rglob("events.out.tfevents.*"))


def test_low_rank_adapters_are_trained_and_nothing_else(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = cases.gpt2(dropout=0.0)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]))
    trainer(tmp_path, model=model, max_steps=3).train()
    kept = {
        name.replace("base_model.model.", "").replace("base_layer.", ""): v for name, v in model.state_dict().items()
    }
    assert all(torch.equal(kept[name], value) for name, value in before.items())
    assert all(bool(value.any()) for name, value in kept.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "with gradient_accumulation_steps: virtual workers take its place"),
        ({"fsdp": "full_shard"}, "with fsdp: each worker holds the whole model"),
        ({"auto_find_batch_size": True}, "with auto_find_batch_size"),
        ({"enable_jit_checkpoint": True}, "with enable_jit_checkpoint"),
        ({"optim": "lomo"}, "with optim=lomo"),
        ({"optim": "galore_adamw_layerwise"}, "with optim=galore_adamw_layerwise"),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, named: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        trainer(tmp_path, **named)


def test_deepspeed_is_refused_by_name(tmp_path: Path) -> None:
    chosen = arguments(tmp_path)
    chosen.deepspeed = {"zero_optimization": {"stage": 2}}
    with pytest.raises(UserError, match="with deepspeed"):
        ElasticTrainer(model=cases.gpt2(), args=chosen, run=a_run())


def test_the_hosts_own_resuming_and_searching_are_refused(tmp_path: Path) -> None:
    host = trainer(tmp_path)
    with pytest.raises(UserError, match="resume_from_checkpoint: the job goes on from its own state"):
        host.train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match="submit a job for each"):
        host.hyperparameter_search()


def test_an_epoch_that_a_callback_cuts_short_is_refused(tmp_path: Path) -> None:
    class Cut(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = True

    with pytest.raises(UserError, match="should_epoch_stop"):
        trainer(tmp_path, callbacks=[Cut()]).train()
