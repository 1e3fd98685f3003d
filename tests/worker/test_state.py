"""The training state as header and tensors: complete, in order, and only for the same script."""

from __future__ import annotations

import array
import datetime
import enum
import uuid
import weakref
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from threading import Lock
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elasticd.protocol.errors import PeerError, UserError
from elasticd.worker.plain import pack, unpack
from elasticd.worker.source.own_code import attributes_of
from elasticd.worker.state.registered import Registered
from elasticd.worker.state.script_state import put
from elasticd.worker.state.training_state import TrainingState, allocate

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=5)
)
KEYS = st.integers(-5, 5) | st.text(max_size=3) | st.tuples(st.integers(0, 3))
VALUES = st.recursive(
    SCALARS | st.binary(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)

MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD([{"params": p[:1], "lr": 0.3}, {"params": p[1:]}], lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.9)),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adam-tensor-lr": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}


class Tied(nn.Module):
    """Tied parameters, BatchNorm with its integer buffer, a buffer that `state_dict` leaves out, a channels-last weight."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, width)
        self.last.weight = self.first.weight
        self.convolution = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)
        self.register_buffer("hidden", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x[:, :1, None, None].expand(-1, 2, 3, 3)
        return self.last(self.norm(self.first(x)).relu()).sum() + self.convolution(image).square().sum()


def make(optimizer: str = "adam", seed: int = 0, **kwargs: Any) -> TrainingState:
    torch.manual_seed(seed)
    model = Tied()
    return TrainingState(model, [OPTIMIZERS[optimizer](list(model.parameters()))], **kwargs)


def registered(**values: Any) -> Registered:
    found = Registered()
    for name, (get, set_value) in values.items():
        found.add(name, get, set_value)
    return found


def train(state: TrainingState, steps: int, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(8, 4, generator=generator)
        (optimizer,) = state.optimizers
        optimizer.zero_grad()
        state.model(x).backward()
        optimizer.step()
        for scheduler in state.schedulers:
            scheduler.step()
        state.model.get_buffer("hidden").add_(1)


def copy(source: TrainingState, target: TrainingState) -> None:
    """The transfer over the network: the header as bytes, tensors one by one."""
    header = msgspec.msgpack.decode(msgspec.msgpack.encode(source.header({"applied": 3})))
    sent = [tensor.clone() for tensor in source.tensors()]
    with torch.no_grad():
        for own, new in zip(target.adopt(header), sent, strict=True):
            assert own.shape == new.shape
            assert own.dtype == new.dtype
            own.copy_(new)
    target.finish(header)


def assert_equal(left: TrainingState, right: TrainingState) -> None:
    assert left.header({}) == right.header({})
    for one, other in zip(left.tensors(), right.tensors(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("steps", "before"), [(0, 0), (3, 0), (3, 2), (0, 2)], ids=["0", "3", "3 over 2", "0 over 2"])
def test_a_copied_state_is_equal_and_goes_on_equally(optimizer: str, steps: int, before: int) -> None:
    source, target = make(optimizer, seed=1), make(optimizer, seed=2)
    train(source, steps)
    train(target, before, seed=9)
    copy(source, target)
    assert_equal(source, target)
    train(source, 2)
    train(target, 2)
    assert_equal(source, target)


def test_tensors_of_a_copy_do_not_share_memory_with_the_original() -> None:
    source, target = make(seed=1), make(seed=2)
    train(source, 1)
    copy(source, target)
    addresses = {tensor.data_ptr() for tensor in source.tensors()}
    assert not any(tensor.data_ptr() in addresses for tensor in target.tensors())


def test_tied_parameters_and_hidden_buffers_come_once_each() -> None:
    names = [name for name, *_ in make("sgd").header({})["tensors"]]
    assert names == [
        "first.weight", "first.bias", "norm.weight", "norm.bias", "last.bias", "convolution.weight", "convolution.bias",
        "hidden", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
    ]  # fmt: skip


def test_parameters_that_only_the_optimizer_knows_travel_too() -> None:
    states = []
    for start in (1.0, 2.0):
        model, temperature = nn.Linear(1, 1), nn.Parameter(torch.tensor(start))
        states.append(TrainingState(model, [torch.optim.SGD([*model.parameters(), temperature], lr=0.1)]))
    copy(states[0], states[1])
    assert_equal(states[0], states[1])
    assert states[1].optimizers[0].param_groups[0]["params"][2].item() == 1.0


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "multi-step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 4], 0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 10),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 20),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "sequential": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_go_on_where_they_were(scheduler: str) -> None:
    source, target = make("adam", 1), make("adam", 2)
    for state in (source, target):
        state.schedulers = [SCHEDULERS[scheduler](state.optimizers[0])]
    train(source, 3)
    copy(source, target)
    train(source, 3)
    train(target, 3)
    assert_equal(source, target)


def test_registered_values_are_handed_over_with_their_types() -> None:
    values: dict[str, Any] = {}
    given = {"best": numpy.float64(0.5), "seen": {1: (2, 3)}, "counts": Counter("aab")}
    source = make(registered=registered(mine=(lambda: given, lambda value: None)))
    target = make(registered=registered(mine=(lambda: None, lambda value: values.update(value))))
    copy(source, target)
    assert values == {"best": 0.5, "seen": {1: (2, 3)}, "counts": Counter("aab")}
    assert type(values["counts"]) is Counter


class Color(enum.Enum):
    RED = 1
    DARK = (torch.float32, 2)


class Losses(list[float]):
    """A subclass that computes something of its items, and has an attribute."""

    limit = 3

    def append(self, value: float) -> None:
        raise AssertionError("a copy is made without the script's methods")


class Registry(dict[str, Any]):
    def __setitem__(self, key: str, value: Any) -> None:
        raise AssertionError("a copy is made without the script's methods")


@pytest.mark.parametrize(
    "value",
    [
        *(
            2**64,
            -(2**70),
            1 + 2j,
            range(2, 2**65, 3),
            slice(1, None),
            Fraction(1, 3),
            Decimal("0.10"),
            bytearray(b"ab"),
        ),
        *(array.array("d", [0.1, 2.0]), Path("a/b"), PurePosixPath("c"), uuid.UUID(int=5)),
        *(datetime.date(2026, 1, 2), datetime.timedelta(1, 2, 3), datetime.time(1, 2, 3, 4, fold=1)),
        *(datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
        *(torch.Size([2, 3]), torch.bfloat16, Color.DARK, [Color.RED], {Color.RED: 1}),
        *(SimpleNamespace(a=[1], b=None), Namespace(lr=0.1), Losses([1.0, 2.0]), Registry(a=[1])),
    ],
    ids=repr,
)
def test_packed_values_keep_their_types(value: Any) -> None:
    made = unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(pack(value, "it"))))
    assert type(made) is type(value)
    assert made == value


def test_attributes_and_tensors_of_containers_and_namespaces_are_carried() -> None:
    losses = Losses([1.0])
    losses.limit = 5
    tensors: list[torch.Tensor] = []
    packed = pack([losses, SimpleNamespace(shadow=torch.ones(2))], "it", lambda tensor, where: tensors.append(tensor))
    made, namespace = unpack(packed, lambda number, present: tensors[0])
    assert type(made) is Losses
    assert made == losses
    assert made.limit == 5
    assert namespace.shadow is tensors[0]


class Meter:
    """An object of the script's own, which nothing but its attributes describes."""

    def __init__(self, value: float) -> None:
        self.value = value
        self.owner: Any = self

    def __setattr__(self, name: str, value: Any) -> None:
        assert name in ("value", "owner")
        object.__setattr__(self, name, value)


class Slotted(Meter):
    __slots__ = ("count",)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("a copy is made without the script's methods")


@pytest.fixture
def own_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classes of this file are those of a script, whatever directory the tests run in."""
    monkeypatch.chdir(Path(__file__).parent)


@pytest.mark.usefixtures("own_classes")
def test_objects_of_the_scripts_classes_are_made_again_without_their_methods() -> None:
    tensors = [torch.ones(2)]
    meter, slotted = Meter(1.0), object.__new__(Slotted)
    object.__setattr__(slotted, "count", [meter])
    object.__setattr__(slotted, "value", tensors[0])
    packed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack([meter, slotted], "it", lambda tensor, where: 0)))
    one, other = unpack(packed, lambda number, present: tensors[number])
    assert type(one) is Meter
    assert one.owner is one
    assert type(other) is Slotted
    assert attributes_of(other, Slotted) == {"count": [one], "value": tensors[0]}


@pytest.mark.usefixtures("own_classes")
def test_an_object_is_filled_and_loses_other_attributes() -> None:
    present, value = Meter(1.0), Meter(2.0)
    del value.owner
    assert put(present, value) is present
    assert vars(present) == {"value": 2.0}


class WithState(Meter):
    def __getstate__(self) -> Any:
        return {}


@pytest.mark.usefixtures("own_classes")
@pytest.mark.parametrize(
    "value", [WithState(1.0), nn.Linear(1, 1), {Meter(1.0): 1}, Lock(), Meter], ids=lambda each: type(each)
)
def test_objects_that_more_than_attributes_describe_are_refused(value: Any) -> None:
    with pytest.raises(UserError, match="which cannot be carried along"):
        pack(value, "it")


@pytest.mark.parametrize(
    ("present", "value"),
    [
        (Losses([1.0]), Losses([2.0, 3.0])),
        (Registry(a=1), Registry(b=2)),
        (OrderedDict(a=1, b=2), OrderedDict(b=3, a=1)),
        (bytearray(b"a"), bytearray(b"bc")),
        (array.array("i", [1]), array.array("i", [2, 3])),
        (SimpleNamespace(a=1), SimpleNamespace(b=2)),
        (Namespace(a=1), Namespace(b=2)),
    ],
    ids=repr,
)
def test_values_that_change_in_place_are_filled(present: Any, value: Any) -> None:
    filled = put(present, value)
    assert filled is present
    assert filled == value
    assert not isinstance(value, dict) or [*filled] == [*value]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": object()}, r"'mine'\['x'\] is a builtins\.object, which cannot be carried"),
        ([enum.Enum("Local", "ONE").ONE], r"Local, which cannot be carried"),
        (
            datetime.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
            r"zoneinfo\.ZoneInfo, which cannot be carried",
        ),
    ],
)
def test_values_that_cannot_travel_are_named(value: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(registered=registered(mine=(lambda: value, lambda value: None))).header({})


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UserError, match="contains itself"):
        pack(value, "it")


def other_model(width: int) -> TrainingState:
    model = Tied(width)
    return TrainingState(model, [torch.optim.Adam(model.parameters())])


def grouped() -> TrainingState:
    model = Tied()
    parameters = list(model.parameters())
    groups = [{"params": parameters[:2]}, {"params": parameters[2:]}]
    return TrainingState(model, [torch.optim.Adam(groups)])


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            lambda: other_model(5),
            r"another model: this one has first.weight \(float32, shape \[5, 5\]\) where .* \[4, 4\]",
        ),
        (lambda: make("sgd"), "that of Adam, this script has SGD"),
        (grouped, r"its groups have \[2, 5\] parameters, in the training state \[7\]"),
        (lambda: make(registered=registered(n=(int, print))), "the registered values none; this script registers n"),
    ],
)
def test_the_state_of_another_script_is_refused_and_changes_nothing(
    target: Callable[[], TrainingState], words: str
) -> None:
    source, refusing = make(), target()
    train(source, 1)
    before = [tensor.clone() for tensor in refusing.tensors()]
    with pytest.raises(UserError, match=words):
        refusing.adopt(source.header({}))
    assert all(torch.equal(one, other) for one, other in zip(before, refusing.tensors(), strict=True))


def test_parameters_that_were_unfrozen_or_grouped_while_the_job_ran_are_so_at_the_joiner_too() -> None:
    def fresh(seed: int) -> TrainingState:
        torch.manual_seed(seed)
        model = Tied()
        model.convolution.requires_grad_(False)
        return TrainingState(model, [torch.optim.Adam([model.first.weight], lr=0.1)])

    source, target = fresh(1), fresh(2)
    train(source, 1)
    source.model.get_submodule("convolution").requires_grad_(True)
    (optimizer,) = source.optimizers
    optimizer.add_param_group({"params": [source.model.get_parameter("convolution.weight")], "lr": 0.5})
    optimizer.param_groups[0]["params"].append(source.model.get_parameter("norm.weight"))
    train(source, 2)
    header = source.header({})
    expected = [name for name, parameter in source.model.named_parameters() if parameter.requires_grad]
    found = {id(parameter) for parameter in target.trained_in(header)}
    assert [name for name, parameter in target.model.named_parameters() if id(parameter) in found] == expected
    copy(source, target)
    assert_equal(source, target)
    assert [group["lr"] for group in target.optimizers[0].param_groups] == [0.1, 0.5]
    for state in (source, target):
        train(state, 3, seed=5)
    assert_equal(source, target)


def test_several_optimizers_and_a_gradient_scaler_travel() -> None:
    def fresh() -> TrainingState:
        model = Tied()
        optimizers = [
            torch.optim.SGD(model.first.parameters(), lr=0.1, momentum=0.9),
            torch.optim.Adam(model.norm.parameters()),
        ]
        return TrainingState(model, optimizers, scaler=torch.amp.GradScaler("cpu", init_scale=256.0))

    source, target = fresh(), fresh()
    assert source.scaler is not None
    assert target.scaler is not None
    for state in (source, target):
        state.scaler.scale(torch.zeros(1))
    for optimizer in source.optimizers:
        source.model(torch.ones(8, 4)).backward()
        optimizer.step()
    source.scaler.update(1024.0)
    copy(source, target)
    assert_equal(source, target)
    assert target.scaler.get_scale() == 1024.0


def test_a_missing_scheduler_is_noticed() -> None:
    source, target = make(), make()
    source.schedulers = [SCHEDULERS["step"](source.optimizers[0])]
    with pytest.raises(UserError, match="has 1 scheduler, this script no scheduler"):
        target.adopt(source.header({}))


@pytest.mark.parametrize(
    "description", [["x", "float32"], ["x", "load", [1], "host"], ["x", "nothing", [1], "host"], 3]
)
def test_what_describes_no_tensor_allocates_none(description: Any) -> None:
    with pytest.raises(PeerError):
        allocate(description, torch.device("cpu"))


@given(value=VALUES)
def test_plain_values_come_back_equal_and_of_the_same_types(value: Any) -> None:
    back = unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(pack(value, "it"))))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(6.0).reshape(2, 3),
        numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        numpy.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
        numpy.broadcast_to(numpy.float32(3), (2, 1)).copy("K").T,
        numpy.zeros((0, 3), order="F"),
    ],
)
@pytest.mark.parametrize("writeable", [False, True])
def test_arrays_come_back_in_their_order_in_memory(array: numpy.ndarray[Any, Any], writeable: bool) -> None:
    array = array.copy("K")
    array.flags.writeable = writeable
    tensors: list[torch.Tensor] = []

    def number(tensor: torch.Tensor, where: str) -> int:
        tensors.append(tensor.clone())
        return len(tensors) - 1

    back = unpack(msgspec.msgpack.decode(msgspec.msgpack.encode(pack(array, "it", number))), lambda n, _: tensors[n])
    numpy.testing.assert_array_equal(back, array)
    assert (back.dtype, back.strides, back.flags.writeable) == (array.dtype, array.strides, writeable)


@pytest.mark.parametrize("data", [{}, {"list": [], "tuple": []}, {"heap": []}, {"tensor": 0}])
def test_what_was_not_packed_is_not_unpacked(data: Any) -> None:
    with pytest.raises(PeerError):
        unpack(data)


def test_a_group_of_an_optimizer_may_be_empty() -> None:
    """As where all its parameters are frozen."""

    def state() -> TrainingState:
        model = torch.nn.Linear(2, 1)
        groups: list[dict[str, Any]] = [{"params": list(model.parameters())}, {"params": [], "weight_decay": 0.5}]
        return TrainingState(model, [torch.optim.SGD(groups, lr=0.1)])

    giver, taker = state(), state()
    giver.optimizers[0].param_groups[1]["lr"] = 0.3
    assert len(taker.adopt(giver.header({}))) == len(giver.tensors()) == 2
    assert [len(group["params"]) for group in taker.optimizers[0].param_groups] == [2, 0]
    assert taker.optimizers[0].param_groups[1]["lr"] == 0.3


def test_a_registered_tensor_that_others_have_keeps_its_memory() -> None:
    """A new tensor in its place could be taken for the old one."""
    array = numpy.ones(1, numpy.float32)
    memory = weakref.ref(array)
    value = {"loss": torch.from_numpy(array)}
    del array
    sender = Registered()
    sender.add("value", lambda: dict(value), value.update)
    sender.step_begins(sends=True)
    sender.updated()
    value["loss"] = torch.tensor([2.0])
    assert memory() is not None
    assert sender.pack_changes() != {"value": {"dict": [["loss", {"tensor": 0}]]}}
    sender.step_begins(sends=True)
    sender.updated()
    assert memory() is None
    assert sender.pack_changes() == {"value": {"dict": [["loss", {"tensor": 0}]]}}


def test_a_registered_value_that_does_not_return_what_it_was_set_to_is_refused() -> None:
    value = {"loss": torch.tensor([1.0])}
    sender, receiver = Registered(), Registered()
    sender.add("value", lambda: dict(value), value.update)
    receiver.add("value", dict, lambda values: None)
    sender.step_begins(sends=True)
    sender.updated()
    with pytest.raises(UserError, match="'value' does not return what it was set to"):
        receiver.unpack_changes(sender.pack_changes())
