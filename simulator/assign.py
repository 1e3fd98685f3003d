"""Workload of a simulation from a trace and measured throughputs (AFS 5.1).

A job has the work that takes its duration in the trace with its requested GPUs. A job gets a random model where the
trace has none, or where its models are ignored (Tiresias' sample names models without measurements). The model is drawn
among those with throughput that grows up to the requested GPUs (if there is none, among those that grow furthest). A
job may have any share from one GPU to the share of its model's greatest throughput within the cluster. If that share is
not known beforehand, the limit is the whole cluster; as in PCS, it can be the request instead.

Without measurements every job scales linearly up to its request and not beyond it.

In a cluster with several types of GPUs a job has a curve for each type. The durations in the trace hold for the type
that comes first in the table of throughputs. Without measurements, all types are equally fast.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..protocol.errors import UserError
from ..protocol.model import JobId
from ..scheduler.arrays import Floats, Ints
from ..scheduler.curves import Curves
from ..scheduler.kinds import Demand
from ..scheduler.policies.base import Policy
from ..scheduler.profiles.curves import Curve, Profiles
from . import lengths, traces
from .goodput import Goodput
from .traces import Trace
from .workload import Workload


@dataclass(frozen=True)
class Assigned:
    """The workload, and further data for the metrics. Columns are in the order of submission."""

    workload: Workload
    deadline_s: Floats  # seconds from the first submission; nan: none
    chosen_batches: Workload | None = (
        None  # for policies that choose batches (`goodput`); None: the goodput of other batches is unknown
    )

    def under(self, policy: Policy) -> Workload:
        """Return the workload under this policy."""
        chooses = getattr(policy, "chooses_batch", False)
        return self.chosen_batches if chooses and self.chosen_batches is not None else self.workload


def assign(
    trace: Trace,
    cluster_gpus: int,
    profiles: Profiles | None,
    seed: int,
    cap_at_request: bool = False,
    random_models: bool = False,
    peaks_known: bool = True,
    types: Sequence[str] = (),
) -> Assigned:
    """Return the workload of `trace` on a cluster of so many GPUs.

    `random_models`: ignore the trace's models. `types`: the names of the GPUs, if jobs are to have a curve for each.
    Raises UserError if a job cannot be simulated.
    """
    _check_sizes(trace, cluster_gpus)
    if random_models:
        trace = _without_models(trace, profiles)
    chosen = _curves(trace, profiles, seed)
    as_requested = np.array([each.speedup[min(gpus, len(each.speedup) - 1)] for each, gpus in _pairs(chosen, trace)])
    work_s = _work_s(trace, chosen, as_requested)
    told_s = None if trace.told_s is None else trace.told_s * as_requested
    shape = _Shape(trace, cluster_gpus, cap_at_request, peaks_known, profiles, types)
    own = _workload(shape, chosen, work_s, told_s)
    assert own.deadline_s is not None
    return Assigned(own, own.deadline_s, _with_chosen_batches(shape, chosen, profiles, work_s, told_s))


@dataclass(frozen=True)
class _Shape:
    """Data that does not depend on how jobs scale."""

    trace: Trace
    cluster_gpus: int
    cap_at_request: bool
    peaks_known: bool
    profiles: Profiles | None
    types: Sequence[str]


def _pairs(curves: Sequence[Curve], trace: Trace) -> Iterator[tuple[Curve, int]]:
    """Return each job's curve and requested GPUs."""
    return zip(curves, trace.gpus.tolist(), strict=True)


def _workload(shape: _Shape, chosen: Sequence[Curve], work_s: Floats, told_s: Floats | None) -> Workload:
    """Return the workload of jobs with these curves. `work_s`: seconds on one GPU. `told_s`: the same as reported."""
    trace = shape.trace
    place = {each: number for number, each in enumerate(dict.fromkeys(chosen))}
    distinct = list(place)
    curve = np.fromiter((place[each] for each in chosen), dtype=np.int64, count=len(chosen))
    best = np.array([each.best(shape.cluster_gpus) for each in distinct], dtype=np.int64)[curve]
    if not shape.peaks_known:
        best = np.full_like(best, shape.cluster_gpus)
    order = np.argsort(trace.submit_s, kind="stable")
    began_s = trace.submit_s[order[0]]
    most = _most(trace, best, shape.cap_at_request)
    each = np.array([max(one.per_server, 1) for one in trace.demands or [Demand()] * len(trace)])
    curves = _on_types(shape, distinct)
    return Workload(
        names=tuple(JobId(trace.names[row]) for row in order.tolist()),
        submit_s=trace.submit_s[order] - began_s,
        min_gpus=each[order],
        max_gpus=np.maximum(most // each * each, each)[order],
        requested_gpus=trace.gpus[order],
        work_s=work_s[order],
        curve=curve[order],
        curves=curves,
        models=tuple(one.model for one in distinct) * (len(curves.speedup) // len(distinct)),
        told_s=None if told_s is None else told_s[order],
        deadline_s=trace.deadline_s[order] - began_s,
        priority=None if trace.priority is None else trace.priority[order],
        demands=None if trace.demands is None else [trace.demands[row] for row in order.tolist()],
        owners={by: [each[row] for row in order.tolist()] for by, each in trace.owners.items()},
    )


def _on_types(shape: _Shape, distinct: Sequence[Curve]) -> Curves:
    """Return these curves, and those of the same jobs on each type of GPUs, relative to one GPU of the first curve."""
    requested = int(shape.trace.gpus.max())
    found, on = list(distinct), {}
    for name in shape.types:
        if shape.profiles is None:
            break
        on[name] = np.arange(len(distinct)) + len(found)
        for curve in distinct:
            other = shape.profiles.on_type(curve, name)
            faster = other.iterations_per_s / curve.iterations_per_s if other is not curve else 1.0
            if not math.isfinite(faster):
                faster = other.samples_per_s / curve.samples_per_s
            found.append(replace(other, speedup=other.speedup * faster))
    return Curves(_padded(found, requested), on=on)


def _with_chosen_batches(
    shape: _Shape, chosen: Sequence[Curve], profiles: Profiles | None, work_s: Floats, told_s: Floats | None
) -> Workload | None:
    """Return the same jobs with batches chosen for each share, where the goodput of all or some is known."""
    if profiles is None or not profiles.placed:
        return None
    goodput = Goodput(profiles)
    found = [goodput.of(each) or (each, 1.0) for each in chosen]
    if all(curve is own for (curve, _), own in zip(found, chosen, strict=True)):
        return None
    parts = np.array([part for _, part in found])
    return _workload(shape, [curve for curve, _ in found], work_s * parts, None if told_s is None else told_s * parts)


def _check_sizes(trace: Trace, cluster_gpus: int) -> None:
    large = trace.gpus > cluster_gpus
    if large.any():
        row = int(large.argmax())
        count = f" ({large.sum()} of {len(trace)} jobs are too large)" if large.sum() > 1 else ""
        reason = f"{trace.gpus[row]} GPUs requested, and the cluster has {cluster_gpus}{count}; --drop-larger leaves those out"
        raise trace.table.wrong(row, trace.form.gpus, reason)


def _without_models(trace: Trace, profiles: Profiles | None) -> Trace:
    if profiles is None:
        raise UserError("--random-models: there is nothing to draw them from: --profiles FILE")
    if trace.duration_s is None:
        raise UserError(
            f"{trace.table.source}: has no durations, so how long jobs are depends on the models that it names"
        )
    return replace(trace, models=None, batches=None)


def _curves(trace: Trace, profiles: Profiles | None, seed: int) -> list[Curve]:
    """Return the curve of each job."""
    if profiles is None:
        if trace.duration_s is None:
            raise UserError(f"{trace.table.source}: has no durations, so throughputs are needed too: --profiles FILE")
        linear = {gpus: _linear(gpus) for gpus in set(trace.gpus.tolist())}
        return [linear[gpus] for gpus in trace.gpus.tolist()]
    if trace.form is traces.EASYSCALE:
        return _of_virtual_workers(trace, _named(trace, profiles))
    if trace.models is not None:
        return _named(trace, profiles)
    return _random(trace.gpus, profiles.pool(), random.Random(seed))


def _linear(gpus: int) -> Curve:
    return Curve(f"linear to {gpus}", None, "", np.arange(gpus + 1, dtype=np.float64))


def _named(trace: Trace, profiles: Profiles) -> list[Curve]:
    """Return the curves of the models that the trace names."""
    assert trace.models is not None
    batches = trace.batches.tolist() if trace.batches is not None else [None] * len(trace)
    found: dict[tuple[str, float | None], Curve] = {}
    for row, key in enumerate(zip(trace.models, batches, strict=True)):
        if key not in found:
            try:
                found[key] = profiles.find(*key)
            except UserError as error:
                raise trace.table.wrong(row, trace.form.model, str(error)) from None
    return [found[key] for key in zip(trace.models, batches, strict=True)]


def _random(gpus: Ints, pool: Sequence[Curve], rng: random.Random) -> list[Curve]:
    best = {curve: curve.best(len(curve.speedup)) for curve in pool}
    furthest = max(best.values())
    fitting = {
        wanted: [curve for curve in pool if best[curve] >= min(wanted, furthest)] for wanted in set(gpus.tolist())
    }
    return [rng.choice(fitting[wanted]) for wanted in gpus.tolist()]


def _of_virtual_workers(trace: Trace, curves: Sequence[Curve]) -> list[Curve]:
    """Return curves of EasyScale's jobs: of N virtual workers, a GPU hosts whole ones, so a step on n GPUs takes ceil(N
    / n) turns (eq. 1)."""
    made: dict[tuple[Curve, int], Curve] = {}
    for curve, workers in zip(curves, trace.gpus.tolist(), strict=True):
        if (curve, workers) not in made:
            gpus = np.arange(1, workers + 1)
            speedup = np.concatenate([[0.0], workers / np.ceil(workers / gpus)])
            made[curve, workers] = replace(curve, speedup=speedup)
    return [made[pair] for pair in zip(curves, trace.gpus.tolist(), strict=True)]


def _work_s(trace: Trace, curves: Sequence[Curve], speedup: Floats) -> Floats:
    """Return each job's seconds on one GPU, from its duration with the requested GPUs, or from its training length."""
    if trace.duration_s is not None:
        return trace.duration_s * speedup
    samples = trace.form is traces.EASYSCALE
    rate = np.array([curve.samples_per_s if samples else curve.iterations_per_s for curve in curves])
    if np.isnan(rate).any():
        row = int(np.isnan(rate).argmax())
        reason = f"only how {curves[row].name} scales is known, not how fast it is on one GPU"
        raise trace.table.wrong(row, trace.form.model, reason)
    return np.asarray(_length(trace) / rate)


def _length(trace: Trace) -> Floats:
    """Return the training lengths: Gavel's in steps, Pollux' in iterations, by application and batch, EasyScale's in
    samples."""
    if trace.form is traces.GAVEL:
        return trace.table.numbers("total_steps", least=1)
    assert trace.models is not None
    models = [model.casefold() for model in trace.models]
    known = lengths.EASYSCALE_SAMPLES if trace.form is traces.EASYSCALE else lengths.POLLUX
    strange = next((row for row, model in enumerate(models) if model not in known), None)
    if strange is not None:
        reason = f"how far {trace.models[strange]!r} trains is not known, only of {', '.join(known)}"
        raise trace.table.wrong(strange, trace.form.model, reason)
    if trace.form is traces.EASYSCALE:
        epochs = trace.table.numbers("epochs", least=1)
        return np.asarray(epochs * np.array([lengths.EASYSCALE_SAMPLES[model] for model in models]))
    assert trace.batches is not None
    pairs = zip(models, trace.batches.tolist(), strict=True)
    return np.array([lengths.POLLUX[model].iterations_with(batch) for model, batch in pairs])


def _padded(curves: Sequence[Curve], requested: int) -> Floats:
    """Return all speedups in one array, as wide as the largest share measured or requested; beyond its last value a
    curve is constant."""
    width = max(requested + 1, max(len(curve.speedup) for curve in curves))
    return np.stack([np.pad(curve.speedup, (0, width - len(curve.speedup)), mode="edge") for curve in curves])


def _most(trace: Trace, best: Ints, cap_at_request: bool) -> Ints:
    return np.minimum(best, trace.gpus) if cap_at_request else best
