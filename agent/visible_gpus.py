"""The GPUs that an agent offers, limited by `visible_gpus` in its configuration and CUDA_VISIBLE_DEVICES in its
environment.

Theory of operation
-------------------
Both name GPUs as CUDA does: by an index, or by the UUID of a GPU or of a MIG instance, or the beginning of one. A whole
GPU that is divided stands for all of its instances. A GPU is offered if both name it; a missing list names all. Other
GPUs are not offered, not watched, and no trouble.

An index is that of the whole GPU as the driver counts it, by PCI addresses. The driver counts GPUs that answer, so that
a dead one moves those behind it up; this module also counts missing GPUs that have been seen before. So an index means
the same GPU as before, and no other one is offered in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ..protocol.errors import OperatorError
from ..protocol.model import Severity, Trouble
from .gpu_numbers import Bound

VARIABLE, OPTION = "CUDA_VISIBLE_DEVICES", "visible_gpus"
_INDEX = re.compile(r"\d{1,4}")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,100}")
NONE = ("", "-1", "NoDevFiles")  # in the variable, as CUDA and batch systems have it


@dataclass(frozen=True)
class VisibleGpus:
    """Names of GPUs by the place of the list; a place that names all GPUs has no entry."""

    named: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, option: Sequence[str | int] | None, environment: Mapping[str, str]) -> VisibleGpus:
        """Return the names in both places. Raises OperatorError for a name that is neither an index nor a UUID."""
        named: dict[str, tuple[str, ...]] = {}
        if option is not None:
            named[OPTION] = tuple(map(str, option))
        if VARIABLE in environment:
            value = environment[VARIABLE].strip()
            named[VARIABLE] = () if value in NONE else tuple(part.strip() for part in value.split(","))
        for where, parts in named.items():
            for part in parts:
                if not _INDEX.fullmatch(part) and not _UUID.fullmatch(part):
                    uuid = "a UUID (GPU-... or MIG-..., see `nvidia-smi -L`)"
                    raise OperatorError(f"{where}: {part[:100]!r} is neither the index of a GPU nor {uuid}")
        return cls(named)

    def __bool__(self) -> bool:
        return bool(self.named)

    def only(self, bound: Bound) -> Bound:
        """Return the GPUs that may be offered, with their numbers."""
        if not self:
            return bound
        found = set(self._seen(bound))
        return replace(
            bound,
            cards={number: card for number, card in bound.cards.items() if number in found},
            missing={number: pair for number, pair in bound.missing.items() if number in found},
        )

    def troubles(self, bound: Bound, now_s: float) -> Iterator[Trouble]:
        """Yield troubles of the server as a whole: a named GPU is missing, or no GPU is left to offer. `bound`: all
        GPUs.
        """
        for where, parts in self.named.items():
            lost = [part for part in parts if not any(_names(part, one) for one in _gpus(bound))]
            if lost:
                text = f"{where} names {', '.join(lost)}, which this server does not have: see `nvidia-smi -L`"
                yield Trouble(code="not-there", severity=Severity.NOTE, text=text, since_s=now_s)
        if self and not list(self._seen(bound)) and list(_gpus(bound)):
            limits = " and ".join(f"{where} ({', '.join(parts) or 'none'})" for where, parts in self.named.items())
            text = f"{limits} leaves no GPU to be offered: change that and restart the agent"
            yield Trouble(code="none-visible", severity=Severity.NO_NEW_WORK, text=text, since_s=now_s)

    def _seen(self, bound: Bound) -> Iterator[int]:
        for one in _gpus(bound):
            if all(any(_names(part, one) for part in parts) for parts in self.named.values()):
                yield one.number


@dataclass(frozen=True)
class _Gpu:
    """A GPU, or an instance of one."""

    number: int
    index: int  # of the whole GPU, by PCI addresses
    uuid: str
    parent: str


def _gpus(bound: Bound) -> Iterable[_Gpu]:
    addresses = {
        *(card.pci for card in bound.cards.values() if card.pci),
        *(known.pci for known, _ in bound.missing.values() if known.pci),
    }
    index = {pci: at for at, pci in enumerate(sorted(addresses))}
    found = [_Gpu(n, index.get(card.pci, card.index), card.uuid, card.parent) for n, card in bound.cards.items()]
    found += [_Gpu(n, index.get(one.pci, n), one.uuid, one.parent) for n, (one, _) in bound.missing.items()]
    return found


def _names(part: str, gpu: _Gpu) -> bool:
    """Return whether `part` names the GPU. Earlier drivers name instances after their GPU: "MIG-GPU-8932f937-.../1/0"."""
    if _INDEX.fullmatch(part):
        return int(part) == gpu.index
    return any(uuid and uuid.lower().startswith(part.lower()) for uuid in (gpu.uuid, gpu.parent))
