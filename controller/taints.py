"""Taints of GPUs: which GPUs take no new work, and why. Pure.

A GPU may be tainted by its server's agent (a trouble of the GPU, or of the whole server), by this controller (starts fail there
again and again: `reconcile.health`), or by an operator, who *cordons* it. An operator who *drains* a GPU also wants its present
work to leave (`reconcile.draining`). An operator may also *trust* a GPU in spite of its troubles. This covers only the troubles
at that moment: a new trouble taints the GPU again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from ..protocol.model import CordonKind, Server, Severity, Trouble
from ..protocol.texts import ranges
from .records import Cordon, OverruleRecord

MOST_TROUBLES = 512  # most troubles of a server and its GPUs
MOST_OF_WHOLE = 64  # of these: troubles of the server as a whole, which apply to each of its GPUs
MOST_REASONS = 8  # most reasons shown for one GPU
MOST_CODE, MOST_TEXT = 64, 500  # characters of a trouble's code and text

NOTHING_OVERRULED = OverruleRecord()
_ORDER = list(Severity)
_KINDS = list(CordonKind)


@dataclass(frozen=True)
class Taint:
    """Reasons why a GPU takes no new work."""

    severity: Severity  # the gravest of all reasons
    reasons: tuple[str, ...]  # for people
    causes: tuple[str, ...]  # codes of troubles and keys of cordons; unchanged as long as there is no new reason
    by_operator: bool = False  # at least one of the reasons is a cordon
    drain: CordonKind | None = None  # the gravest drain of the GPU
    beside: Taint | None = None  # for a cordoned GPU: the taint without cordons

    @property
    def text(self) -> str:
        return "; ".join(self.reasons)

    @property
    def fault(self) -> Taint | None:
        """The taint for faults of the GPU alone, without cordons; None: no fault taints it."""
        return self.beside if self.by_operator else self

    @property
    def may_stay(self) -> bool:
        """Whether a job that has to leave the GPU stays as long as it would have no GPU otherwise."""
        return self.severity is Severity.MOVE_AWAY and self.drain is not CordonKind.DRAIN_BY_PREEMPTING


def within_bounds(server: Server, reported: Iterable[Trouble]) -> tuple[Trouble, ...]:
    """Return the troubles in an agent's report, without invalid ones and those beyond the limits; texts are cut."""
    there = {gpu.index for gpu in server.gpus}
    found: list[Trouble] = []
    of_whole = 0
    for trouble in reported:
        if len(found) >= MOST_TROUBLES or not 0 < len(trouble.code) <= MOST_CODE or not trouble.code.isprintable():
            continue
        if trouble.gpu is not None and trouble.gpu not in there:
            continue
        of_whole += trouble.gpu is None
        if trouble.gpu is None and of_whole > MOST_OF_WHOLE:
            continue
        since_s = trouble.since_s if math.isfinite(trouble.since_s) else 0.0
        text = "".join(each if each.isprintable() else " " for each in trouble.text[:MOST_TEXT])
        found.append(replace(trouble, text=text, since_s=since_s))
    return tuple(found)


def taints(
    server: Server,
    troubles: Iterable[Trouble],
    overruled: OverruleRecord,
    failing: Mapping[int, str],
) -> dict[int, Taint]:
    """Return the taints by index of those GPUs of `server` that take no new work.

    `failing`: by index, the GPUs where starts of workers fail, with a sentence about the failure.
    """
    gpus = [gpu.index for gpu in server.gpus]
    found: dict[int, list[tuple[Severity, str, str]]] = {}
    for trouble in troubles:
        if trouble.severity.blocks_new_work and not trusts(overruled, trouble):
            for gpu in gpus if trouble.gpu is None else [trouble.gpu]:
                found.setdefault(gpu, []).append((trouble.severity, trouble.text, trouble.code))
    for gpu, text in failing.items():
        found.setdefault(gpu, []).append((Severity.NO_NEW_WORK, text, "failing-starts"))
    tainted = {gpu: _taint(found[gpu]) for gpu in gpus if gpu in found}
    for gpu in gpus if overruled.cordons else ():
        if cordons := [cordon for cordon in overruled.cordons if cordon.covers(gpu)]:
            tainted[gpu] = _cordoned(cordons, found.get(gpu, []), tainted.get(gpu))
    return {gpu: tainted[gpu] for gpu in gpus if gpu in tainted}


def _cordoned(cordons: Sequence[Cordon], wrong: Sequence[tuple[Severity, str, str]], fault: Taint | None) -> Taint:
    """Return the taint of a cordoned GPU. `wrong`: the other reasons (severity, text, code); `fault`: the taint for these
    alone."""
    why = list(wrong)
    for cordon in cordons:
        severity = Severity.MOVE_AWAY if cordon.kind.drains else Severity.NO_NEW_WORK
        because = f": {cordon.reason}" if cordon.reason else ""
        text = f"{'drain ordered' if cordon.kind.drains else 'cordoned'} by {cordon.by}{because}"
        if cordon.loan:
            text = f"{cordon.reason}, by {cordon.by}"
        why.append((severity, text, f"{cordon.kind.value}-{cordon.since_s}"))
    drain = max((cordon.kind for cordon in cordons if cordon.kind.drains), key=_KINDS.index, default=None)
    return dataclasses.replace(_taint(why), by_operator=True, drain=drain, beside=fault)


def nothing_sentence(server: Server, troubles: Iterable[Trouble]) -> str:
    """Return the agent's reasons why its server has no GPU; "": the server has GPUs, or the agent gives no reason."""
    if server.gpus:
        return ""
    return "; ".join(
        _first([trouble.text for trouble in troubles if trouble.gpu is None and trouble.severity.blocks_new_work])
    )


def _taint(why: Collection[tuple[Severity, str, str]]) -> Taint:
    gravest = max((severity for severity, _, _ in why), key=_ORDER.index)
    return Taint(gravest, _first([text for _, text, _ in why]), tuple(sorted(cause for _, _, cause in why)))


def _first(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the first MOST_REASONS texts, followed by the number of the others."""
    more = len(texts) - MOST_REASONS
    return (*texts[:MOST_REASONS], f"and {more} more") if more > 0 else tuple(texts)


def trusts(overruled: OverruleRecord, trouble: Trouble) -> bool:
    """Return whether an operator has overruled this trouble, so that the GPU or the server is used in spite of it."""
    return any(
        (one.gpu, one.code, one.since_s) == (trouble.gpu, trouble.code, trouble.since_s) for one in overruled.trusted
    )


def trusted_codes(troubles: Iterable[Trouble], overruled: OverruleRecord, gpu: int) -> tuple[str, ...]:
    """Return the codes of the troubles that an operator has overruled on a GPU."""
    return tuple(trouble.code for trouble in troubles if trouble.gpu in (None, gpu) and trusts(overruled, trouble))


def sentences(gpus: int, tainted: Mapping[int, Taint]) -> Iterator[str]:
    """Yield sentences, for people, on why GPUs take no new work: one sentence for all GPUs with the same reasons.

    `gpus`: the number of GPUs of the server.
    """
    alike: dict[str, list[int]] = {}
    for gpu, taint in tainted.items():
        alike.setdefault(taint.text, []).append(gpu)
    for text, found in alike.items():
        if len(found) == gpus:
            yield f"no new work here: {text}"
        else:
            yield f"no new work on GPU{'s' if len(found) > 1 else ''} {ranges(found)}: {text}"
