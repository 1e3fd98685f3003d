"""Exported checkpoints: plain PyTorch goes on from them with the bits that the job would have had."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elasticd.protocol.errors import OperatorError, UserError
from elasticd.worker.state.exporting import export
from elasticd.worker.state.held import KEYS
from elasticd.worker.state.registered import Registered
from elasticd.worker.state.training_state import TrainingState


class Tied(nn.Module):
    """A language model's shape: the head has the embedding's weights, and a mask is no part of the state_dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.body(self.embedding(numbers)) * self.mask)
        return out


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    return torch.optim.AdamW([{"params": others, "lr": 0.1}, {"params": [first], "weight_decay": 0.0}], amsgrad=True)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        numbers = torch.arange(step, step + 8) % 7
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(numbers), (numbers * 3 + 1) % 7).backward()
        optimizer.step()


def seeded() -> nn.Module:
    torch.manual_seed(3)
    return Tied()


@dataclasses.dataclass
class Best:
    """A class of the script's own."""

    loss: float


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a checkpoint of a state after five steps."""

    def save(state: TrainingState, **changes: Any) -> Path:
        header = {**state.header({"applied": 4, "epoch": 1, "generation": 2}), KEYS: state.keys(), **changes}
        directory = tmp_path / "checkpoints"
        directory.mkdir(exist_ok=True)
        path = directory / "generation-00000002-step-000000000004.pt"
        torch.save({"header": header, "tensors": state.tensors(), "summed": True}, path)
        return path

    return save


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = seeded()
    optimizer = adamw(model)
    train(model, optimizer, range(5))
    return model, optimizer


def same_after(one: tuple[nn.Module, torch.optim.Optimizer], other: tuple[nn.Module, torch.optim.Optimizer]) -> bool:
    """Whether both have the same bits after more steps."""
    for model, optimizer in (one, other):
        train(model, optimizer, range(5, 9))
    states = [model.state_dict() for model, _ in (one, other)]
    return states[0].keys() == states[1].keys() and all(torch.equal(a, states[1][key]) for key, a in states[0].items())


@pytest.mark.parametrize("source", ["file", "directory"])
def test_plain_pytorch_goes_on_from_a_pickled_one(saved: Any, tmp_path: Path, source: str) -> None:
    model, optimizer = trained()
    path = saved(TrainingState(model, [optimizer]))
    out = str(tmp_path / "out.pt")
    assert "after 5 steps" in export(path if source == "file" else path.parent, out)
    found = torch.load(out, weights_only=True)
    assert (found["step"], found["epoch"]) == (5, 1)
    other = Tied()
    another = adamw(other)
    other.load_state_dict(found["model"])  # strict: neither more nor fewer keys
    another.load_state_dict(found["optimizer"])
    assert same_after((model, optimizer), (other, another))


def test_torch_distributed_checkpoint_loads_a_directory(saved: Any, tmp_path: Path) -> None:
    from torch.distributed import checkpoint  # here, since it takes seconds and each test process collects this module
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = trained()
    out = tmp_path / "distributed"
    export(saved(TrainingState(model, [optimizer])), f"{out}/")
    other = seeded()
    another = adamw(other)
    model_state, optimizer_state = get_state_dict(other, another)
    state = {"model": model_state, "optimizer": optimizer_state}
    checkpoint.load(state, checkpoint_id=out, no_dist=True)
    set_state_dict(other, another, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert same_after((model, optimizer), (other, another))


def test_safetensors_have_a_tied_tensor_once(saved: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    model, optimizer = trained()
    out = tmp_path / "model.safetensors"
    export(saved(TrainingState(model, [optimizer])), str(out))
    other = Tied()
    assert safetensors.load_model(other, out) == (set(), [])
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


def test_averages_schedulers_and_registered_values_are_there_and_others_are_named(saved: Any, tmp_path: Path) -> None:
    model, optimizer = trained()
    average = AveragedModel(model)
    average.update_parameters(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    values: dict[str, Any] = {"losses": [0.5, torch.tensor(2.0)], "best": Best(0.25)}
    registered = Registered()
    for name in values:
        registered.add(name, partial(values.get, name), partial(values.__setitem__, name))
    state = TrainingState(model, [optimizer], registered=registered)
    state.follow([scheduler], [average], [])
    out = tmp_path / "out.pt"
    assert export(saved(state), str(out)).endswith("without best")
    found = torch.load(out, weights_only=True)
    fresh = AveragedModel(Tied())
    fresh.load_state_dict(found["averages"][0])
    assert torch.equal(fresh.module.embedding.weight, average.module.embedding.weight)
    assert found["scheduler"]["step_size"] == 2
    assert found["registered"]["losses"][1] == 2.0


def test_a_compiled_model_has_the_keys_of_the_plain_one(saved: Any, tmp_path: Path) -> None:
    model, optimizer = trained()
    export(saved(TrainingState(torch.compile(model), [optimizer])), str(tmp_path / "out.pth"))  # type: ignore[arg-type]
    Tied().load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True)["model"])


def test_errors_say_what_to_do_and_write_nothing(saved: Any, tmp_path: Path) -> None:
    state = TrainingState(*(lambda model, optimizer: (model, [optimizer]))(*trained()))
    path, out = saved(state), tmp_path / "out.pt"
    out.write_bytes(b"mine")
    for given, where, error, words in (
        (path, out, UserError, "--force replaces it"),
        (path, tmp_path / "out.onnx", UserError, "say a file .safetensors or .pt"),
        (path, tmp_path / "missing" / "out.pt", UserError, "no such directory"),
        (path, f"{tmp_path}/checkpoints/", UserError, "exists"),
        (tmp_path / "nothing", tmp_path / "new.pt", OperatorError, "cannot be opened"),
        (out, tmp_path / "new.pt", OperatorError, "not a checkpoint"),
    ):
        with pytest.raises(error, match=words):
            export(given, str(where))
    assert out.read_bytes() == b"mine"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoints", "out.pt"]
    export(path, str(out), force=True)
    assert torch.load(out, weights_only=True)["step"] == 5
    old = saved(state, **{KEYS: None})
    with pytest.raises(OperatorError, match="save the job's state again"):
        export(old, str(tmp_path / "new.pt"))
