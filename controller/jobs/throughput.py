"""Known throughput of a job, from its own measurements, its specification, the profile of its model, and earlier jobs.

Earlier jobs of the same kind are found by a fingerprint of the facts that determine the time of a step. So known jobs
need not be measured again (ElasticFlow 6.6). Their measurements are kept in the store, for a limited number of kinds
and a limited time.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec

from ...protocol.model import JobSpec, Value
from ...scheduler.arrays import Floats, Ints
from ...scheduler.hull import concave
from ...scheduler.speedup_curve import NOISE, Known, Measured, Rate, Source, combined, estimate, layer, on_gpus

KEPT_KINDS = 1000
KEPT_POINTS = 64  # measurements per kind
KEPT_S = 90 * 86_400.0
RENEWED_S = 3600.0  # unchanged values are written again after this time, so that they do not expire
PREFIX = "/throughput/"

Profiles = Mapping[str, Mapping[int, float]]  # by model name in lower case: steps per second by share


class KindRecord(Value, frozen=True, kw_only=True):
    """Recorded measurements of one kind of jobs."""

    fingerprint: str
    updated_s: float
    measured: tuple[Measured, ...]


def _says(known: KindRecord, measured: Iterable[Measured]) -> bool:
    """Return whether a kind's record has equal values, within the noise, for all these measurements."""
    rates = {(entry.share, entry.servers, entry.gpu): entry.steps_per_s for entry in known.measured}
    return all(
        (rate := rates.get((entry.share, entry.servers, entry.gpu))) is not None
        and abs(entry.steps_per_s - rate) <= NOISE * rate
        for entry in measured
    )


def fingerprint(spec: JobSpec) -> str:
    """Return the fingerprint of a job, equal for jobs with steps of equal duration.

    It covers the program, the model, the virtual workers and the determinism.
    """
    parts = (spec.workdir, spec.command, spec.model, spec.virtual_workers, spec.determinism.value)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()[:32]


class History:
    """Kinds of jobs by fingerprint, the least recently measured first."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, KindRecord] = OrderedDict()

    def recover(self, records: Iterable[KindRecord]) -> None:
        for record in sorted(records, key=lambda record: (record.updated_s, record.fingerprint)):
            self._kinds[record.fingerprint] = record

    def records(self) -> tuple[KindRecord, ...]:
        """Return all records."""
        return tuple(self._kinds.values())

    def find(self, kind: str, now: float) -> KindRecord | None:
        """Return the record of a kind, unless it is too old."""
        record = self._kinds.get(kind)
        return record if record is not None and now - record.updated_s <= KEPT_S else None

    def note(self, kind: str, measured: Iterable[Measured], now: float) -> tuple[dict[str, bytes], list[str]]:
        """Take over measurements of a job of this kind, which replace earlier ones of the same shares.

        Values that are equal within the noise change nothing. Returns the puts and deletes for the store.
        """
        measured = tuple(measured)
        known = self.find(kind, now)
        if known is not None and now - known.updated_s < RENEWED_S and _says(known, measured):
            return {}, []
        entries = {}
        for entry in (*(known.measured if known is not None else ()), *measured):
            entries[entry.share, entry.servers, entry.gpu] = entry
        fresh = sorted(
            (entry for entry in entries.values() if now - entry.at_s <= KEPT_S), key=lambda entry: entry.at_s
        )
        record = KindRecord(fingerprint=kind, updated_s=now, measured=tuple(fresh[-KEPT_POINTS:]))
        self._kinds[kind] = record
        self._kinds.move_to_end(kind)
        return {PREFIX + kind: msgspec.msgpack.encode(record)}, [PREFIX + gone for gone in self._forget(now)]

    def _forget(self, now: float) -> list[str]:
        """Remove the kinds that are too many or too old, and return their fingerprints."""
        gone: list[str] = []
        for kind, record in self._kinds.items():
            if len(self._kinds) - len(gone) <= KEPT_KINDS and now - record.updated_s <= KEPT_S:
                break
            gone.append(kind)
        for kind in gone:
            del self._kinds[kind]
        return gone


@dataclass(frozen=True)
class Estimated:
    """Estimate of a job's throughput curve, valid while its inputs are the same objects."""

    measured: tuple[Measured, ...]
    earlier: KindRecord | None
    fewest: Ints  # fewest servers by share
    known: Known
    curve: Floats  # steps per second by share; in an unknown unit if no throughput is known
    gpu: str = ""  # name of the GPUs; "": those that were measured last

    @cached_property
    def speedup(self) -> Floats:
        """T(n) / T(1) by share."""
        found: Floats = self.curve / self.curve[1]
        return found

    @cached_property
    def hull(self) -> Floats:
        """T(n) / T(1) by share, of the curve's concave hull."""
        found: Floats = concave(self.speedup[None, :])[0]
        return found


def estimated(
    before: Estimated | None,
    spec: JobSpec,
    measured: tuple[Measured, ...],
    earlier: KindRecord | None,
    profile: Mapping[int, float],
    fewest: Ints,
    gpu: str = "",
) -> Estimated:
    """Return the estimate for a job on GPUs of a name. `before`: its last estimate, which is returned if it is still valid.

    Values from the job file and of profiles apply to all GPUs, as far as none have been measured.
    """
    if (
        before is not None
        and before.gpu == gpu
        and before.measured is measured
        and before.earlier is earlier
        and (before.fewest is fewest or before.fewest.tobytes() == fewest.tobytes())
    ):
        return before
    known = combined(
        (
            _untold(profile, Source.PROFILE),
            _untold(spec.throughput, Source.STATED),
            layer(on_gpus(earlier.measured, gpu) if earlier is not None else (), Source.HISTORY),
            layer(on_gpus(measured, gpu), Source.MEASURED),
        )
    )
    return Estimated(measured, earlier, fewest, known, estimate(known, fewest), gpu)


def _untold(rates: Mapping[int, float], source: Source) -> Known:
    """Return rates for which the number of servers is unknown."""
    return {(share, 0): Rate(rate, source) for share, rate in rates.items()}
