"""Which objects of Python and of libraries a look at a script's values reads, and which of their attributes (`reachable`)."""

from __future__ import annotations

import array
import collections
import functools
import io
import itertools
import random
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy
import torch

from .source.own_code import attributes_of, mro_of

NAMED_ITEMS = 32  # items up to which those of a container have names
PLAIN = frozenset({type(None), bool, int, float, complex, str, bytes})
MUTABLE = (list, dict, set, collections.deque, bytearray, array.array, torch.Tensor, torch.nn.Module, numpy.ndarray)

ITERATORS: tuple[type, ...] = tuple(
    {
        *map(type, map(iter, ([], (), "", b"", bytearray(), range(0), range(2**70)))),
        *map(type, map(iter, ({}.items(), {}.keys(), {}.values()))),
        *(type(reversed([])), type(reversed({})), type(reversed(range(0))), type(reversed(()))),
        type(iter(collections.deque[Any]())),
        *(enumerate, zip, map, filter),
        *(itertools.count, itertools.cycle, itertools.repeat, itertools.chain, itertools.islice, itertools.accumulate),
        *(itertools.product, itertools.permutations, itertools.combinations, itertools.zip_longest),
        *(itertools.compress, itertools.dropwhile, itertools.takewhile, itertools.starmap, itertools.filterfalse),
    }
)
SET_ITERATOR = type(iter(set[Any]()))
FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
STDLIB_OBJECTS = frozenset(
    """
    argparse.Namespace types.SimpleNamespace functools.partial queue.Queue queue.LifoQueue queue.PriorityQueue
    """.split()  # noqa: SIM905
)
PICKLED = frozenset({"numpy", "pandas", "scipy", "sklearn"})  # packages whose objects scripts change
CHANGING = frozenset({"_queue", "dbm", "mmap", "multiprocessing", "shelve", "sqlite3"})  # of Python's modules
DESCRIPTORS = (property, classmethod, staticmethod, functools.cached_property, types.MemberDescriptorType)
DENIED_BASES = (io.IOBase, BaseException)
FOREIGN = frozenset(
    """
    IPython PIL _pytest absl accelerate aim boto3 botocore click clearml comet_ml cv2 datasets elasticctl elasticd h5py
    huggingface_hub hydra ipykernel lightning lightning_fabric lmdb loguru matplotlib mlflow neptune omegaconf
    psutil pyarrow pynvml pytest pytorch_lightning ray requests rich structlog tensorboard tensorboardX tokenizers
    tqdm transformers triton typer urllib3 wandb zarr zmq
    """.split()  # noqa: SIM905
)
OF_MODULES = frozenset(vars(torch.nn.Module()))
_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})  # attributes of each member of an enum


@functools.cache
def of_optimizers() -> frozenset[str]:
    """Attributes of every optimizer. Creating the first one imports torch's compiler, as slow as `import torch` itself."""
    return frozenset(vars(torch.optim.SGD([torch.zeros(1)], lr=0.1))) | {"step", "_opt_called", "_step_count"}


def leave_out(objects: Iterable[Any]) -> frozenset[int]:
    """Return the ids for `look(known=...)` of objects that the runtime carries itself.

    These are modules with all their parts, optimizers, schedulers, tensors, datasets' loaders and any other given
    object. The objects must live as long as the ids are used.
    """
    found: set[int] = set()
    for each in objects:
        found.add(id(each))
        if issubclass(type(each), torch.nn.Module):
            for module in each.modules():
                found.add(id(module))
                found.update(id(tensor) for tensor in (*module._parameters.values(), *module._buffers.values()))
    found.discard(id(None))
    return frozenset(found)


def attributes_in(value: Any, kind: type, *names: str) -> list[tuple[str, Any]]:
    """Return those of these attributes that exist, in this order."""
    inner = attributes_of(value, kind)
    return [(f".{name}", inner[name]) for name in names if name in inner]


def options_in(inner: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """Return the options of one of torch's modules: attributes with plain values, functions bound to it, such as another
    `forward`, and what the script has added. Behind an underscore torch keeps other values of its own.
    """
    options = [(label, part) for label, part in sorted(inner.items()) if not is_of(label, OF_MODULES)]
    kinds, of_torch = (*PLAIN, *FUNCTIONS), _mentioned(kind)
    return [
        (f".{label}", part)
        for label, part in options
        if type(part) in kinds
        or (not (label.startswith("_") and label in of_torch) and (issubclass(type(part), MUTABLE) or _is_state(part)))
    ]


def options_of_optimizer(inner: Mapping[str, Any], kind: type) -> list[tuple[str, Any]]:
    """Return the attributes of an optimizer that belong to no state: all of the script's own class; of torch's plain values,
    and what the script has added.
    """
    own, of_torch = not kind.__module__.startswith("torch."), _mentioned(kind)

    def counts(label: str, part: Any) -> bool:
        plain = type(part) in PLAIN
        return own or (plain and label[0] != "_") or (label not in of_torch and (plain or isinstance(part, MUTABLE)))

    found = [(label, part) for label, part in sorted(inner.items()) if not is_of(label, of_optimizers())]
    return [(f".{label}", part) for label, part in found if counts(label, part)]


@functools.cache
def _mentioned(kind: type) -> frozenset[str]:
    """Return the names that the functions of a class and its bases mention, such as those of its own attributes."""
    functions = [each for base in mro_of(kind) for each in vars(base).values() if isinstance(each, types.FunctionType)]
    return frozenset(name for each in functions for name in each.__code__.co_names)


def _is_state(value: Any) -> bool:
    """Return whether a value is a tuple of other than plain values, such as an LSTM's hidden state; not a kernel's size."""
    return type(value) is tuple and not {type(each) for each in value} <= PLAIN


def of_tensor(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes that a script has given to a tensor."""
    inner = torch.Tensor.__dict__["__dict__"].__get__(value)
    kinds = (*PLAIN, *MUTABLE)  # behind an underscore: others are of torch and its libraries
    return [
        (f".{name}", part)
        for name, part in sorted(inner.items())
        if not name.startswith("_") or (not name.startswith("__") and isinstance(part, kinds))
    ]


def of_caches(kind: type) -> set[str]:
    """Return the names of attributes that an object of a library computes once, when they are first read."""
    found = {name: each for base in reversed(mro_of(kind)) for name, each in vars(base).items()}
    return {name for name, each in found.items() if type(each) is functools.cached_property}


def names_within(value: Any) -> Iterator[str]:
    """Yield the last names of an object's attributes; of a dict those of objects that it may give its items as attributes."""
    for names in (value if isinstance(value, dict) else (), getattr(value, "__dict__", ())):
        yield from (f".{each}" for each in names if type(each) is str)


def of_member(member: Any) -> list[tuple[str, Any]]:
    """Return the attributes that a script has given to a member of an enum."""
    return [(f".{name}", part) for name, part in sorted(vars(member).items()) if name not in _OF_MEMBERS]


def is_of(label: str, names: Collection[str]) -> bool:
    return label in names or label.startswith("__")


def weight(value: Any) -> int:
    """Return the sort key of a root: plain values first, then cheap ones, then objects, then containers."""
    kind = type(value)
    if kind in PLAIN:
        return 0
    if issubclass(kind, torch.Generator | random.Random | numpy.random.Generator | numpy.random.RandomState):
        return 1
    if issubclass(kind, torch.Tensor | numpy.ndarray | numpy.generic):
        return 2
    if issubclass(kind, type | types.FunctionType):
        return 3
    if issubclass(kind, list | tuple | dict | set | frozenset | collections.deque):
        return 4 if len(value) <= NAMED_ITEMS else 6
    return 5
