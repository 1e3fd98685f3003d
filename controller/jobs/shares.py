"""Share of a job over time: the record's list of changes, and the GPU time that follows from it.

`JobRecord.shares` lists the changes, the newest last. `attained_gpu_s` and `executed_s` of the record are sums up to
`JobRecord.counted_s` (Unix time); the time since then is added where a sum is read. The functions here only read a
record; `Job` applies the changes that they return.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ...protocol.messages import ShareChange
from ...protocol.model import Fault
from ...protocol.texts import LONGEST_REASON, gpu_count, over_words
from .records import JobRecord

KEPT_SHARES = 512
KEPT_REASONS = 16  # length of the tail of `JobRecord.shares` in which reasons are kept


def changed(record: JobRecord, now: float, share: int) -> dict[str, Any]:
    """Return the fields of the record that change if `share` GPUs train from `now` on; none if the share stays 0."""
    shares = record.shares
    if share == 0 and (not shares or shares[-1].share == 0):
        return {}
    change = ShareChange(time_s=now, share=share, generation=record.committed, reason=_reason(record, share))
    if len(shares) >= KEPT_REASONS and shares[-KEPT_REASONS].reason:
        forgotten = msgspec.structs.replace(shares[-KEPT_REASONS], reason="")
        shares = (*shares[:-KEPT_REASONS], forgotten, *shares[1 - KEPT_REASONS :])
    return {
        **counted(record, now, now),
        "shares": (*shares, change)[-KEPT_SHARES:],
        "peak_gpus": max(record.peak_gpus, share),
    }


def _reason(record: JobRecord, share: int) -> str:
    """Return the reason, in words, for which `share` GPUs train from now on."""
    if record.phase.final:
        return f"it {over_words(record.phase)}"
    had_before = any(one.share == share and one.time_s >= record.target_since_s for one in record.shares)
    if share == len(record.target) and not (share and had_before):
        return record.target_reason
    if share == len(record.target):
        return "whole again"
    lost = next(
        (entry for entry in reversed(record.past) if entry.fault not in (None, Fault.NONE, Fault.STOPPED)), None
    )
    if lost is not None and (not record.shares or (lost.ended_s or 0.0) >= record.shares[-1].time_s):
        return f"{lost.worker} on {lost.gpu} was lost: {lost.reason}"[:LONGEST_REASON]
    return f"on its way to {gpu_count(len(record.target))}"


def attained_gpu_s(record: JobRecord, now: float) -> float:
    """Return the GPU-seconds of training up to `now`."""
    if not record.shares:
        return 0.0
    return record.attained_gpu_s + record.shares[-1].share * _uncounted_s(record, now)


def executed_s(record: JobRecord, now: float) -> float:
    """Return the seconds of training up to `now`, on any number of GPUs."""
    if not record.shares or not record.shares[-1].share:
        return record.executed_s
    return record.executed_s + _uncounted_s(record, now)


def counted(record: JobRecord, until: float, on_from: float) -> dict[str, Any]:
    """Return the record's sums of GPU time up to `until`; the next seconds to count are those after `on_from`."""
    return {
        "attained_gpu_s": attained_gpu_s(record, until),
        "executed_s": executed_s(record, until),
        "counted_s": on_from,
    }


def _uncounted_s(record: JobRecord, now: float) -> float:
    since_s = record.counted_s if record.counted_s is not None else record.shares[-1].time_s
    return max(0.0, now - since_s)
