"""Script of the demo: cues, each a command with the condition for it. Pure; the clock is an argument.

Cues depend on the state of the cluster, not on the clock alone, so that a slow machine shows the same story.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from elasticd.protocol.messages import JobView

BETWEEN_SUBMISSIONS_S = 10.0
BEFORE_BACK_S = 6.0
PATIENCE_S = 45.0  # after this long a cue runs even if its condition does not hold

Words = tuple[str, ...]  # the arguments of an `elasticctl` call
SKIP: Words = ()


@dataclass(frozen=True)
class Situation:
    """State on which a cue depends."""

    waited_s: float  # since the last call has ended
    jobs: Sequence[JobView]

    def job(self, name: str) -> JobView | None:
        return next((job for job in self.jobs if job.spec.name == name), None)


Cue = Callable[[Situation], Words | None]  # None: not yet


def _submit(name: str, after: str | None = None) -> Cue:
    """Submit `name` a while after the job `after`, which should train by then, or be over."""

    def cue(situation: Situation) -> Words | None:
        before = situation.job(after) if after else None
        shown = before is None or before.share_gpus > 0 or before.phase.final or situation.waited_s >= PATIENCE_S
        due = after is None or situation.waited_s >= BETWEEN_SUBMISSIONS_S
        return ("submit", f"examples/{name}/job.yaml") if due and shown else None

    return cue


def _by_hand(situation: Situation) -> Words | None:
    """Set a share by hand when the tabular job is over and the other two have divided its GPUs."""
    job, gone = situation.job("charlm"), situation.job("tabular")
    if job is None or job.phase.final:
        return SKIP
    settled = gone is not None and gone.phase.final and 0 < job.share_gpus == job.wanted_gpus
    if not settled and situation.waited_s < PATIENCE_S:
        return None
    return "scale", job.job, str(3 if job.share_gpus < 3 else job.share_gpus - 1)


def _back(situation: Situation) -> Words | None:
    """Give the decision back to the policy a while later."""
    job = situation.job("charlm")
    if job is None or job.phase.final or job.manual_share is None:
        return SKIP
    return ("scale", job.job, "auto") if situation.waited_s >= BEFORE_BACK_S else None


CUES: tuple[Cue, ...] = (_submit("digits"), _submit("charlm", "digits"), _submit("tabular", "charlm"), _by_hand, _back)


class Story:
    """Sequence of the cues, one call of ``elasticctl`` at a time."""

    def __init__(self, now: float) -> None:
        self._number = 0
        self._since = now

    @property
    def over(self) -> bool:
        return self._number >= len(CUES)

    def next(self, now: float, jobs: Sequence[JobView]) -> Words | None:
        """Return the call to make now, or None. The caller asks again only after that call has `ended`."""
        while not self.over:
            words = CUES[self._number](Situation(now - self._since, jobs))
            if words != SKIP:
                return words
            self.ended(now)
        return None

    def ended(self, now: float) -> None:
        """Record that the present call is over."""
        self._number += 1
        self._since = now
