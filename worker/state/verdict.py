"""Verdict on workers with different states: the workers that are wrong, and the value in which they differ. Pure.

Each worker sends *entries* of its state, all in the same order: a name, a digest, and the value as text. Workers with
the same entries form one opinion. If more than half of them share an opinion, the others are wrong. Otherwise the wrong
ones are unknown. New workers have no vote against those that have given them the state: any number of new workers may
make the same mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Entry = tuple[str, int, str]  # name, digest, value as text ("": not shown)

SHOWN = 24  # characters of a value in the sentence
LISTED = 4  # workers in the sentence

_CAUSES = {
    "optimizer": "set hyperparameters from run.steps_done, not from a count of loop bodies",
    "registered value": "what is registered must be the same on all workers: no losses or batches of one worker",
    "scheduler": "step schedulers alike on all workers",
}
_OTHERWISE = "code that changes it on some workers only, or faulty hardware"


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison. Ranks without entries are in neither group."""

    majority: tuple[int, ...]  # ranks that agree, more than half of the voters; or empty
    wrong: tuple[int, ...]  # the other ranks
    entry: str  # name of the first entry in which two ranks differ
    reads: Mapping[int, str]  # the entry's value as text, by rank
    others: int  # number of further entries that differ


def judge(payloads: Sequence[Sequence[Entry] | None], newcomers: frozenset[int] = frozenset()) -> Verdict | None:
    """Return the verdict on the entries of each rank (None: the rank has sent none). None: all agree.

    newcomers: ranks without a vote, as long as other ranks have sent entries.
    """
    told = {rank: {name: (digest, reads) for name, digest, reads in it} for rank, it in enumerate(payloads) if it}
    opinions: dict[frozenset[tuple[str, int]], list[int]] = {}
    for rank, entries in told.items():
        opinions.setdefault(frozenset((name, entry[0]) for name, entry in entries.items()), []).append(rank)
    if len(opinions) < 2:
        return None
    voters = frozenset(told) - newcomers or frozenset(told)
    most = max(opinions.values(), key=lambda ranks: len(voters.intersection(ranks)))
    majority = tuple(most) if 2 * len(voters.intersection(most)) > len(voters) else ()
    names = dict.fromkeys(name for entries in told.values() for name in entries)
    first, *others = [name for name in names if len({entries.get(name, (None,))[0] for entries in told.values()}) > 1]
    reads = {rank: entries[first][1] if first in entries else "not there" for rank, entries in told.items()}
    return Verdict(majority, tuple(sorted(set(told) - set(majority))), first, reads, len(others))


def sentence(verdict: Verdict, step: int, workers: Sequence[str]) -> str:
    """Describe the difference, with its usual cause. workers: names by rank, with their GPUs."""
    reads = verdict.reads
    if verdict.majority:
        verb = "differ" if len(verdict.wrong) > 1 else "differs"
        who = f"{_listed(workers, verdict.wrong)} {verb} from {len(verdict.majority)} workers that agree"
        here, there = reads[verdict.wrong[0]], reads[verdict.majority[0]]
    else:
        who = f"{_listed(workers, verdict.wrong)} differ, and no majority agrees"
        here = reads[verdict.wrong[0]]
        there = next((reads[rank] for rank in verdict.wrong if reads[rank] != here), here)
    values = f" ({here or '-'} and {there or '-'})" if here != there else ""
    more = f" and {verdict.others} more" if verdict.others else ""
    cause = next((text for begin, text in _CAUSES.items() if verdict.entry.startswith(begin)), _OTHERWISE)
    return f"step {step}: {who} in {verdict.entry}{values}{more}; usual cause: {cause}"


def _listed(workers: Sequence[str], ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - LISTED} more" if len(ranks) > LISTED else ""
    return ", ".join(workers[rank] for rank in ranks[:LISTED]) + more


# ------------------------------------------------------------------------------------------------------------ entries


def value_entries(header: Mapping[str, Any], digest: Callable[[Any], int]) -> list[Entry]:
    """Return the plain values of a state's header (`training_state`) as entries. digest: of packed values."""
    found: list[Entry] = []

    def tell(name: str, value: Any) -> None:
        shown = value if isinstance(value, str) and name.startswith("the tensor") else repr(value)
        found.append((name, digest(value), shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."))

    for key, value in header.items():
        match key:
            case "tensors":
                for name, kind, shape, _ in value:
                    tell(f"the tensor {name}", f"{kind} {list(shape)}")
            case "optimizers":
                for number, optimizer in enumerate(value):
                    name = "optimizer" if len(value) == 1 else f"optimizer {number}"
                    tell(f"{name}: its kind", optimizer["kind"])
                    for position, state in optimizer["states"]:
                        _walk(f"{name}.state[{position}]", state, tell)
                    for position, group in enumerate(optimizer["groups"]):
                        _walk(f"{name}.param_groups[{position}]['params']", {"list": group["params"]}, tell)
                        _walk(f"{name}.param_groups[{position}]", group["options"], tell)
            case "schedulers":
                for number, state in enumerate(value):
                    _walk("scheduler" if len(value) == 1 else f"scheduler {number}", state, tell)
            case "registered":
                for name, packed in value.items():
                    _walk(f"registered value {name!r}", packed, tell)
            case _:
                _walk(key, value, tell)
    return found


def _walk(name: str, packed: Any, tell: Callable[[str, Any], None]) -> None:
    """Report each scalar in packed or plain values under the Python expression that reads it."""
    if isinstance(packed, list):
        packed = {"list": packed}
    if not isinstance(packed, dict):
        tell(name, packed)
        return
    if len(packed) == 1:
        ((kind, content),) = packed.items()
        if kind in ("list", "tuple"):
            tell(f"len({name})", len(content))
            for position, item in enumerate(content):
                _walk(f"{name}[{position}]", item, tell)
            return
        if kind in ("dict", "Counter"):
            for key, item in content:
                _walk(f"{name}[{key!r}]", item, tell)
            return
        if kind == "tensor":
            return  # tensors have entries of their own
    for key, item in packed.items():
        _walk(f"{name}[{key!r}]", item, tell)
