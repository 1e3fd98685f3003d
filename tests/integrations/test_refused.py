"""Unsupported uses of a framework are refused at the call, by name."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import elasticd as elastic
from elasticd.integrations.bodies import Bodies
from elasticd.integrations.ddp import adopt
from elasticd.integrations.ranks import RankOrder
from elasticd.protocol.errors import UserError


def needs(framework: str) -> pytest.MarkDecorator:
    lacking = importlib.util.find_spec(framework) is None
    return pytest.mark.skipif(lacking, reason=f"{framework} is not installed: pip install {framework}")


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(40.0).view(20, 2)), batch_size=2, **options)


def parts() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


# -- DDP


def test_a_wrapped_model_is_refused() -> None:
    wrapped = object.__new__(DistributedDataParallel)  # a real one requires a process group
    with pytest.raises(UserError, match="leave DistributedDataParallel out"):
        adopt(wrapped)


def test_what_adopt_does_not_know_is_named() -> None:
    with pytest.raises(UserError, match="adopt\\(\\) got a list"):
        adopt([1, 2])


def test_a_loop_without_its_parts_says_what_is_lacking() -> None:
    job, *_ = adopt(*parts())
    with pytest.raises(UserError, match="the training's data loader"):
        job.epochs(1)


def test_batches_outside_the_loop_say_where_they_are() -> None:
    _, _, _, batches = adopt(*parts(), loader())
    with pytest.raises(UserError, match="in the loop over epochs"):
        next(iter(batches))


@pytest.mark.parametrize(("size", "drop_last"), [(20, False), (22, False), (22, True)])
def test_a_virtual_worker_reads_what_its_rank_would(size: int, drop_last: bool) -> None:
    data, ranks, batch = list(range(size)), 4, 2
    order = RankOrder(data, DistributedSampler(data, 1, 0, seed=3, drop_last=drop_last), ranks, batch)
    order.set_epoch(5)
    drawn = list(order)
    assert len(drawn) == len(order)
    for rank in range(ranks):
        sampler = DistributedSampler(data, ranks, rank, seed=3, drop_last=drop_last)
        sampler.set_epoch(5)
        own = list(sampler)
        read: list[int] = []
        for begin in range(0, len(drawn), ranks * batch):
            step = drawn[begin : begin + ranks * batch]
            each = len(step) // ranks
            read += step[rank * each : (rank + 1) * each]
        assert read == own


def test_the_length_of_a_loader_is_in_global_steps() -> None:
    for size, drop_last, steps in ((20, False, 3), (20, True, 2), (16, True, 2)):
        bodies = Bodies(elastic.join(virtual_workers=4))
        data = TensorDataset(torch.zeros(size, 2))
        reading = bodies.read(DataLoader(data, batch_size=2, shuffle=True, drop_last=drop_last))
        assert reading is not None
        assert len(reading) == steps
        assert bodies.read(loader()) is None, "the second one is an evaluation's"


# -- accelerate


@needs("accelerate")
def test_accelerate_refuses_by_name() -> None:
    from elasticd.integrations.accelerate import ElasticAccelerator

    with pytest.raises(UserError, match="gradient_accumulation_steps"):
        ElasticAccelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator = ElasticAccelerator(cpu=True, run=elastic.join(virtual_workers=4))
    assert accelerator.num_processes == 4
    model, _ = parts()
    for call, text in (
        (lambda: accelerator.clip_grad_value_(model.parameters(), 1.0), "clip_grad_norm_"),
        (lambda: accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1), "2-norm"),
        (accelerator.save_state, "keeps its own state"),
        (accelerator.load_state, "goes on from its own state"),
    ):
        with pytest.raises(UserError, match=text):
            call()


@needs("accelerate")
def test_accelerate_refuses_a_collective_in_a_body() -> None:
    from elasticd.integrations.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(cpu=True)
    _, _, batches = accelerator.prepare(*parts(), loader())
    for _ in accelerator.epochs(1):
        for _ in batches:
            with pytest.raises(UserError, match="was called in the loop over batches"):
                accelerator.gather(torch.ones(1))
            break
        break


# -- Lightning


@needs("lightning")
def test_fabric_refuses_by_name() -> None:
    from lightning.fabric import Fabric

    from elasticd.integrations.fabric import ElasticStrategy

    fabric = Fabric(accelerator="cpu", strategy=ElasticStrategy())
    fabric.launch()
    model, optimizer = fabric.setup(*parts())
    with pytest.raises(UserError, match="clip by norm"):
        fabric.clip_gradients(model, optimizer, clip_val=1.0)
    with pytest.raises(UserError, match="2-norm"):
        fabric.clip_gradients(model, optimizer, max_norm=1.0, norm_type=1.0)


@needs("lightning")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"limit_train_batches": 2}, "limit_train_batches"),
        ({"reload_dataloaders_every_n_epochs": 1}, "reload_dataloaders_every_n_epochs"),
        ({"max_time": "00:01:00:00"}, "max_time"),
    ],
)
def test_lightning_refuses_by_name(options: dict[str, Any], text: str) -> None:
    import lightning.pytorch as pl

    from elasticd.integrations.lightning import ElasticStrategy

    with pytest.raises(UserError, match=text):
        trainer(ElasticStrategy(), logger=False, **options).fit(module(pl), loader())


@needs("lightning")
def test_lightning_refuses_manual_optimization_and_loggers_that_look_around(tmp_path: Any) -> None:
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import CSVLogger

    from elasticd.integrations.lightning import ElasticStrategy

    manual = module(pl)
    manual.automatic_optimization = False
    with pytest.raises(UserError, match="automatic_optimization"):
        trainer(ElasticStrategy(), logger=False).fit(manual, loader())
    with pytest.raises(UserError, match="version="):
        trainer(ElasticStrategy(), logger=CSVLogger(tmp_path)).fit(module(pl), loader())


@needs("lightning")
def test_lightning_refuses_to_gather_in_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    import lightning.pytorch as pl

    from elasticd.integrations.lightning import ElasticStrategy

    monkeypatch.setenv("ELASTIC_VIRTUAL_WORKERS", "2")
    contrasts = module(pl)

    def training_step(batch: Any, batch_idx: int) -> Any:
        return contrasts.all_gather(contrasts.net(batch[0]), sync_grads=True).mean()

    contrasts.training_step = training_step
    with pytest.raises(UserError, match=r"self.all_gather\(\) was called in the training.* run.gather\(tensor\)"):
        trainer(ElasticStrategy(), logger=False).fit(contrasts, loader())


def trainer(strategy: Any, **options: Any) -> Any:
    import lightning.pytorch as pl

    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return pl.Trainer(accelerator="cpu", devices=1, strategy=strategy, max_epochs=1, **quiet, **options)


def module(pl: Any) -> Any:
    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            found: torch.Tensor = self.net(batch[0]).square().mean()
            return found

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Module()
