"""Kinds of GPUs, and the kinds that a job may use. Pure.

A job may name types ("A100"), an amount of memory, and a number of GPUs on each of its servers. Beside these there is a
rule that always holds: **a job stays on GPUs of one type for its whole life**. Different types calculate with different
kernels, so the bits of the result depend on the type (EasyScale 3.3: D0 and D1 hold for homogeneous GPUs only, D2 for
others). `determinism: elastic`, the default, promises that the bits do not depend on where the job runs, so the cluster
has to keep to one type:

* `elastic` and `static`: all GPUs of the job have the same name as those that it began on. Where the job names types,
  it may have all GPUs that match one of these words: `type: [A100, V100]` means either A100s or V100s, not both.
* `none` makes no promise: such a job may use all GPUs that it asks for at once.
* `heterogeneous` may do so as soon as its workers have found that each operator of its script has one algorithm on all
  hardware (`worker.operators`), before the first update. Until then, and if not, it keeps to one type as `elastic` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ..protocol.model import Determinism, JobSpec
from ..protocol.texts import gpu_count, memory_text
from .amounts import NO_NEED, Capacity, Need

_TOKEN = re.compile(r"[a-z0-9.]+")
SLICE = "mig"  # marks the name of a part of a GPU


@dataclass(frozen=True)
class GpuSort:
    """Properties by which jobs distinguish GPUs."""

    name: str = ""
    memory_bytes: int = 0


@dataclass(frozen=True)
class Demand:
    """The GPUs that a job may use. The default: any, but of one type."""

    types: tuple[str, ...] = ()
    memory_bytes: int = 0
    mixes: bool = False  # the job may use GPUs of several types at once
    began_on: str = ""  # the name of the GPUs on which the job began; "": it has not begun, or mixes types
    per_server: int = 0  # fixed number of GPUs on each of the job's servers; 0: any number
    need: Need = NO_NEED  # cores, memory and container of each worker

    @classmethod
    def of(cls, spec: JobSpec, began_on: str = "", agnostic: bool = False) -> Demand:
        """Return the demand of a job that has begun on GPUs of this name; "": it has not begun.

        agnostic: the job's operators are known to give the same bits on all GPU types.
        """
        free = spec.determinism is Determinism.HETEROGENEOUS and agnostic
        mixes = free or spec.determinism is Determinism.NONE
        return cls(
            types=spec.gpu_types,
            memory_bytes=spec.gpu_memory_bytes,
            mixes=mixes,
            began_on="" if mixes else began_on,
            per_server=spec.gpus_per_server or 0,
            need=Need.of(spec),
        )

    def options(self, sorts: Iterable[GpuSort]) -> tuple[tuple[GpuSort, ...], ...]:
        """Return the sets of GPUs among which the job may choose: all of its GPUs belong to one of them.

        No set is empty.
        """
        able = [sort for sort in sorts if sort.memory_bytes >= self.memory_bytes]
        if self.types:
            by_word = [[sort for sort in able if is_called(word, sort.name)] for word in self.types]
            found = [[sort for sort in able if any(sort in one for one in by_word)]] if self.mixes else by_word
        elif self.mixes:
            found = [able]
        else:
            found = [[sort for sort in able if sort.name == name] for name in dict.fromkeys(sort.name for sort in able)]
        if self.began_on:
            found = [one for one in found if any(sort.name == self.began_on for sort in one)]
        return tuple(dict.fromkeys(tuple(one) for one in found if one))

    @property
    def counts(self) -> bool:
        """Whether a GPU's server matters even if the job may use every GPU: for a container, cores, memory or a fixed
        number.
        """
        return bool(self.per_server or self.need)

    @property
    def what(self) -> str:
        """The demand in words, to follow a number: "A100 or V100 with 40 GiB, 4 on each server"."""
        name = " or ".join(self.types) or self.began_on or "GPUs"
        memory = f" with {memory_text(self.memory_bytes)}" if self.memory_bytes else ""
        each = f", {self.per_server} on each server" if self.per_server else ""
        return f"{name}{memory}{each}"


ANY = Demand()


def is_called(word: str, name: str) -> bool:
    """Return whether all parts of `word` are among the words of a GPU's name. "A100" does not match "A10", nor a slice
    of an A100 (a word with "mig" does)."""
    wanted, there = _TOKEN.findall(word.lower()), _TOKEN.findall(name.lower())
    return bool(wanted) and set(wanted) <= set(there) and (SLICE in wanted or SLICE not in there)


@dataclass(frozen=True)
class Stock:
    """Number of GPUs of each sort on a server, and its cores and memory; None: these are not counted."""

    count: tuple[tuple[GpuSort, int], ...]
    capacity: Capacity | None = None
    server: str = ""

    @classmethod
    def of(cls, sorts: Sequence[GpuSort], capacity: Capacity | None = None, server: str = "") -> Stock:
        return cls(tuple((sort, sorts.count(sort)) for sort in dict.fromkeys(sorts)), capacity, server)

    def among(self, option: Sequence[GpuSort]) -> int:
        return sum([number for sort, number in self.count if sort in option])

    def room(self, demand: Demand, option: Sequence[GpuSort]) -> int:
        """Return how many GPUs of these sorts a job could have on this server if it were alone."""
        found = self.among(option)
        return found if self.capacity is None else self.capacity.most(demand.need, found)


def stock_of(demand: Demand, stock: Stock) -> int:
    """Return how many GPUs of a server the job may have, of any allowed type."""
    options = demand.options([sort for sort, _ in stock.count])
    return stock.room(demand, [sort for option in options for sort in option])


def most_gpus(demand: Demand, servers: Sequence[Stock]) -> int:
    """Return the largest share that a job can have if it is alone."""
    return most_of_each([demand], servers)[0]


def most_of_each(demands: Sequence[Demand], servers: Sequence[Stock]) -> list[int]:
    """Return the largest share for each demand.

    Users may write one demand in several ways: servers are counted once for each set of GPUs.
    """
    sorts = dict.fromkeys(sort for stock in servers for sort, _ in stock.count)
    known: dict[tuple[tuple[tuple[GpuSort, ...], ...], int, Need], int] = {}
    found = []
    for demand in demands:
        options = demand.options(sorts)
        asked = (options, demand.per_server, demand.need)
        if asked not in known:
            known[asked] = max([_room(demand, option, servers) for option in options], default=0)
        found.append(known[asked])
    return found


def _room(demand: Demand, option: Sequence[GpuSort], servers: Sequence[Stock]) -> int:
    able = [stock.room(demand, option) for stock in servers]
    if demand.per_server:
        return demand.per_server * sum(number >= demand.per_server for number in able)
    return sum(able)


def never_fits(demand: Demand, least: int, servers: Sequence[Stock]) -> str:
    """Return why a job that needs `least` GPUs could not run on these servers even if alone; empty if it could."""
    if not servers or most_gpus(demand, servers) >= least:
        return ""
    total = sum(number for stock in servers for _, number in stock.count)
    if least > total:
        return f"it needs at least {gpu_count(least)}, and the cluster has {total}"
    sorts = list(dict.fromkeys(sort for stock in servers for sort, _ in stock.count))
    there = _there(sorts, servers)
    named = [sort for sort in sorts if not demand.types or any(is_called(word, sort.name) for word in demand.types)]
    if not named:
        return f"no server has a GPU of type {' or '.join(demand.types)}; there are {there}"
    able = [sort for sort in named if sort.memory_bytes >= demand.memory_bytes]
    if not able:
        largest = max(named, key=lambda sort: sort.memory_bytes)
        of_type = f" of type {' or '.join(demand.types)}" if demand.types else ""
        if not largest.memory_bytes:
            return f"a job that asks for memory needs GPUs that tell how much they have; {largest.name} does not"
        return (
            f"no GPU{of_type} has {memory_text(demand.memory_bytes)}; "
            f"the largest is {largest.name} with {memory_text(largest.memory_bytes)}"
        )
    if demand.need and most_gpus(replace(demand, need=NO_NEED), servers) >= least:
        return _never_has(demand, least, servers)
    each = demand.per_server
    if each and not any(stock.among(option) >= each for option in demand.options(sorts) for stock in servers):
        return f"no server has {each} {_without_each(demand)}; there are {there}"
    one_type = "" if demand.mixes or len({sort.name for sort in able}) < 2 else " of one type"
    most = most_gpus(demand, servers)
    return f"it needs at least {least} {demand.what}{one_type}, and the cluster has {most}; there are {there}"


def _never_has(demand: Demand, least: int, servers: Sequence[Stock]) -> str:
    """Return why a job for which there are enough GPUs never has the container, the cores or the memory that it asks for."""
    known = [(stock.server, stock.capacity) for stock in servers if stock.capacity is not None]
    outside = replace(demand, need=replace(demand.need, container=False))
    if demand.need.container and most_gpus(outside, servers) >= least:
        server, why = next((server, capacity.no_containers) for server, capacity in known if capacity.no_containers)
        most = most_gpus(demand, servers)
        able = f"only {gpu_count(most)} of the cluster are on servers that can" if most else "no server can"
        return f"its workers run in containers, and {able}; {server}: {why}"
    held = [(server, capacity) for server, capacity in known if not capacity.refuses(demand.need)]
    asks = f"each of its workers asks for {demand.need}"
    if not held:
        return f"{asks}, and no server can hold workers to that; {known[0][0]}: {known[0][1].refuses(demand.need)}"
    lacking = {name for _, capacity in held for name in capacity.lacks(demand.need)}
    by_memory = "cores" not in lacking and "memory" in lacking
    server, largest = max(held, key=lambda each: each[1].left.memory_bytes if by_memory else each[1].left.millicores)
    has = f"the largest server, {server}, has {largest.left}"
    if largest.worker and largest.lacks(demand.need):
        has += f", at most {largest.worker} for one worker"
    if any(capacity.takes(demand.need) for _, capacity in held):
        most = most_gpus(demand, servers)
        return f"{asks}; with that the cluster has room for {gpu_count(most)}, and it needs at least {least}: {has}"
    return f"{asks}, and {has}"


def _without_each(demand: Demand) -> str:
    return Demand(types=demand.types, memory_bytes=demand.memory_bytes).what


def _plural(name: str, count: int) -> str:
    """Return the plural of "CPU slot"; names of GPUs stay as they are."""
    if not name:
        return "GPUs"
    return f"{name}s" if count != 1 and name.endswith(" slot") else name


def _there(sorts: Sequence[GpuSort], servers: Sequence[Stock]) -> str:
    """Return the GPUs of these servers as text: "8 NVIDIA A100-SXM4-40GB and 4 Tesla V100-SXM2-16GB"."""
    names = list(dict.fromkeys(sort.name for sort in sorts))
    counts = [sum([number for stock in servers for sort, number in stock.count if sort.name == name]) for name in names]
    found = [f"{count} {_plural(name, count)}" for name, count in zip(names, counts, strict=True)]
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
