"""transformers.Trainer (`integrations`) with a single worker: results, written files, and refusals."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticd.protocol.errors import UserError

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("transformers", "accelerate"))),
    reason="the extra `transformers` is not installed",
)


@pytest.fixture(scope="module")
def trainers() -> Any:
    """Loaded by the process that runs the tests, not by all that collect them: transformers takes seconds."""
    return importlib.import_module("tests.worker.trainers")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """As `elastic.join` sets it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_it_trains_as_the_plain_trainer_does_that_accumulates_over_as_many_micro_batches(
    trainers: Any, tmp_path: Path
) -> None:
    """With full steps only: accumulation knows no steps in which some have no sample."""
    read: list[list[dict[str, Any]]] = []

    class Watching(trainers.ElasticTrainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            read.append([])
            return super().training_step(model, _kept(inputs, read[-1]), num_items_in_batch)

    told = trainers.Told()
    elastic = trainers.trainer(
        tmp_path, Watching, [told], max_steps=8, lr_scheduler_type="cosine", dataloader_drop_last=True
    )
    elastic.train()
    trainers.Same.batches = read
    plain = trainers.trainer(
        tmp_path, trainers.Same, max_steps=8, lr_scheduler_type="cosine", gradient_accumulation_steps=4
    )
    plain.train()
    for name in ("loss", "grad_norm", "learning_rate"):
        assert trainers.losses(elastic, name) == pytest.approx(trainers.losses(plain, name), rel=1e-4), name
    assert [step for step, _ in told.steps] == list(range(1, 9))
    assert told.norms == pytest.approx([min(1.0, norm) for norm in trainers.losses(elastic, "grad_norm")], rel=1e-3)
    for name, value in plain.model.state_dict().items():
        torch.testing.assert_close(
            elastic.model.state_dict()[name], value, rtol=1e-3, atol=2e-4
        )  # Adam amplifies small gradients


def _kept(step: Any, into: list[Any]) -> Any:
    for batch in step:
        into.append(batch)
        yield batch


def test_a_trainer_for_sequences_is_one_too(trainers: Any, tmp_path: Path) -> None:
    assert issubclass(trainers.ElasticSeq2SeqTrainer, trainers.Seq2SeqTrainer)
    assert issubclass(trainers.ElasticSeq2SeqTrainer, trainers.ElasticTrainer)


def test_checkpoints_of_the_host_are_the_scripts_own_classes(trainers: Any, tmp_path: Path) -> None:
    host = trainers.trainer(tmp_path, save_strategy="steps", save_steps=5, save_total_limit=1, max_steps=10)
    host.train()
    host.save_model()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-10"]
    kept = torch.load(tmp_path / "checkpoint-10" / "training_args.bin", weights_only=False)
    assert type(kept) is trainers.TrainingArguments
    assert (tmp_path / "model.safetensors").exists()
    assert (tmp_path / "checkpoint-10" / "optimizer.pt").exists()


def test_tensorboard_writes_what_is_logged(trainers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    host = trainers.trainer(tmp_path, report_to=["tensorboard"], max_steps=3)
    assert not (tmp_path / "board").exists(), "before the loop nobody knows who leads"
    host.train()
    assert list((tmp_path / "board").rglob("events.out.tfevents.*"))


def test_low_rank_adapters_are_trained_and_nothing_else(trainers: Any, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    base = trainers.cases.gpt2(dropout=0.0)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"]))
    trainers.trainer(tmp_path, model=model, max_steps=3).train()
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
def test_what_cannot_work_is_refused_by_name(
    trainers: Any, tmp_path: Path, named: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        trainers.trainer(tmp_path, **named)


def test_deepspeed_is_refused_by_name(trainers: Any, tmp_path: Path) -> None:
    chosen = trainers.arguments(tmp_path)
    chosen.deepspeed = {"zero_optimization": {"stage": 2}}
    with pytest.raises(UserError, match="with deepspeed"):
        trainers.ElasticTrainer(model=trainers.cases.gpt2(), args=chosen, run=trainers.a_run())


def test_the_hosts_own_resuming_and_searching_are_refused(trainers: Any, tmp_path: Path) -> None:
    host = trainers.trainer(tmp_path)
    with pytest.raises(UserError, match="resume_from_checkpoint: the job goes on from its own state"):
        host.train(resume_from_checkpoint=True)
    with pytest.raises(UserError, match="submit a job for each"):
        host.hyperparameter_search()


def test_an_epoch_that_a_callback_cuts_short_is_refused(trainers: Any, tmp_path: Path) -> None:
    class Cut(trainers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_epoch_stop = True

    with pytest.raises(UserError, match="should_epoch_stop"):
        trainers.trainer(tmp_path, callbacks=[Cut()]).train()
