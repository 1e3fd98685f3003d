"""A cluster from Python: the calls by which a scheduler, a notebook or a test changes running jobs.

The names are those of EDL's API (Table 1: scaleOut, scaleIn, profile, checkpoint). Elan's service API (Table III,
Request-Adjustment) is `scale`. Each method waits until the change has taken place, and raises an error of one sentence
otherwise: UserError for bad input, RequestRefused, NotAllowed, or ClusterUnreachable.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from ..protocol.errors import RequestRefused, UserError
from ..protocol.messages import (
    Checkpoint,
    Checkpointed,
    JobView,
    Pause,
    Paused,
    Profile,
    Profiling,
    Resume,
    Resumed,
    Scale,
    Scaled,
)
from ..protocol.texts import gpu_count
from . import render
from .context import DECIDED_WITHIN_S, given
from .jobs import until_measured
from .stopping import until_saved, until_stopped
from .waiting import Waiting

WITHIN_S = 600.0


class Cluster:
    """Connection to a cluster; a context manager that closes it. An object serves one thread.

    `controller`, `key`, `directory`: as the options of `elasticctl`, which finds the cluster in the same way without
    them. `within_s`: the longest wait of a call.
    """

    def __init__(
        self,
        controller: str | None = None,
        key: str | Path | None = None,
        directory: str | Path | None = None,
        within_s: float = WITHIN_S,
    ) -> None:
        self._context = given(Path(directory) if directory else None, controller, Path(key) if key else None)
        self._within_s = within_s

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later call opens another."""
        self._context.close()

    def job(self, job: str) -> JobView:
        """Return the full view of a job."""
        return self._context.job(job)

    def scale_out(self, job: str, gpus: int = 1) -> JobView:
        """Add GPUs to a job (EDL Table 1, scaleOut). The scheduler chooses them; the job then keeps this share."""
        _at_least_one("scale_out", gpus)
        return self.scale(job, self.job(job).share_gpus + gpus)

    def scale_in(self, job: str, gpus: int = 1) -> JobView:
        """Remove GPUs from a job (EDL Table 1, scaleIn). `pause` takes all of them."""
        _at_least_one("scale_in", gpus)
        view = self.job(job)
        if gpus >= view.share_gpus:
            raise UserError(
                f"scale_in: {view.job} has {gpu_count(view.share_gpus)}, and has to keep one: pause takes all"
            )
        return self.scale(job, view.share_gpus - gpus)

    def scale(self, job: str, gpus: int | None) -> JobView:
        """Set a job's share (Elan Table III, Request-Adjustment); None: the policy decides again.

        Returns the job once it trains with this share, or with fewer GPUs if no more are available now.
        """
        order = self._context.ask(Scale(job=job, share=gpus), Scaled, DECIDED_WITHIN_S)
        after = "; the order stands"
        waiting = Waiting(f"{order.job} to train on {gpu_count(order.share)}", self._within_s, after)
        while True:
            view = self.job(order.job)
            if view.phase.final:
                raise RequestRefused(f"{render.outcome(view)}, before it was resized")
            if view.generation >= order.generation and view.share_gpus == view.wanted_gpus:
                return view
            waiting.pause(view.reason)

    def profile(self, job: str, least: int | None = None, most: int | None = None) -> dict[int, float]:
        """Measure a job with `least` to `most` of its GPUs (EDL Table 1, profile); default: half, a quarter, and so on.

        Returns the steps per second by number of GPUs, as far as they are measured. The job trains on meanwhile.
        """
        order = self._context.ask(Profile(job=job, least=least, most=most), Profiling, DECIDED_WITHIN_S)
        view = until_measured(self._context, order.job, self._within_s)
        points = [point for point in view.curve if point.source == "measured"]
        return {point.share_gpus: point.steps_per_s for point in sorted(points, key=lambda point: point.share_gpus)}

    def checkpoint(self, job: str) -> str:
        """Have a job save its state at its next step (EDL Table 1, checkpoint). Returns the file, on its server."""
        found = self._context.ask(Checkpoint(job=job), Checkpointed)
        return until_saved(self._context, found, self._within_s).file

    def pause(self, job: str) -> JobView:
        """Have a job save its state and give its GPUs back, until `resume`."""
        order = self._context.ask(Pause(job=job), Paused)
        return until_stopped(self._context, order.job, self._within_s, "paused")

    def resume(self, job: str) -> JobView:
        """Let a paused job run again, from its saved state, when it gets GPUs."""
        return self.job(self._context.ask(Resume(job=job), Resumed).job)


def _at_least_one(what: str, gpus: int) -> None:
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        raise UserError(f"{what}: {gpus!r} is no number of GPUs (at least 1)")
