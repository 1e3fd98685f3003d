"""Many histories, in several processes. A journal keeps their outcomes, so that an interrupted campaign continues."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from .agreements import with_agreements
from .disasters import with_disasters
from .drawing import Shape, draw
from .forger import with_forger
from .history import Outcome, play
from .plan import WEATHERS, Plan
from .zombies import with_zombies

CHUNK = 4  # histories per task of a process
ROOT = Path(__file__).parents[2]
PLAYED = (
    "protocol",
    "scheduler",
    "controller",
    "agent",
    "worker",
    "verification/world",
)  # folders with the code that determines a history


@dataclass(frozen=True)
class Settings:
    """Parameters of a campaign. `weather` empty: TCP for even seeds, hostile for odd ones."""

    weather: str = ""
    shape: Shape = field(default_factory=Shape)

    def plan(self, seed: int) -> Plan:
        """Return the history of a seed."""
        name = self.weather or ("hostile" if seed % 2 else "tcp")
        plan = draw(seed, WEATHERS[name], self.shape)
        return with_agreements(with_zombies(with_forger(with_disasters(plan)))) if self.shape == Shape() else plan

    @property
    def mark(self) -> str:
        """Identifies the kind and the code of a campaign: only histories with equal marks may be counted together."""
        digest = hashlib.sha256(repr(self).encode())
        for path in sorted(path for folder in PLAYED for path in (ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:12]


class OtherCampaign(Exception):
    """A campaign's file holds histories of another kind, or of other code."""


def _play(settings: Settings, seed: int) -> Outcome:
    return play(settings.plan(seed))


def outcomes(settings: Settings, seeds: Iterable[int], processes: int) -> Iterator[Outcome]:
    """Play all seeds in `processes` processes; yields outcomes in the order of completion."""
    if processes <= 1:
        yield from map(partial(_play, settings), seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(partial(_play, settings), seeds, chunksize=CHUNK)


class Journal:
    """A campaign's file: a line with its mark, then a line for each history. Without a path nothing is kept."""

    def __init__(self, path: Path | None, settings: Settings) -> None:
        """Raises OtherCampaign if the file belongs to another campaign, OSError if it cannot be read or made."""
        self._path = path
        self.known: dict[int, Outcome] = {}
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(json.dumps({"campaign": settings.mark}) + "\n")
            return
        head, *lines = path.read_text().splitlines() or [""]
        if head != json.dumps({"campaign": settings.mark}):
            raise OtherCampaign(f"{path} is a campaign with other options, or of other code: name another file")
        for line in lines:
            try:
                outcome = Outcome(**{**json.loads(line), "story": ()})
            except (ValueError, TypeError):
                continue  # a truncated last line: the campaign was killed while it wrote
            self.known[outcome.seed] = outcome

    def note(self, outcome: Outcome) -> None:
        self.known[outcome.seed] = outcome
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({**asdict(outcome), "story": []}) + "\n")


def first_failures(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Failed histories by invariant, in the order of their seeds."""
    found: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.seed):
        if outcome.failed:
            found.setdefault(outcome.invariant, []).append(outcome)
    return found


def cores() -> int:
    """Number of processes that may run at once."""
    return len(os.sched_getaffinity(0))


Watch = Callable[[Outcome], None]


def run(settings: Settings, seeds: range, processes: int, journal: Journal, watch: Watch, fail_fast: bool) -> None:
    """Play the histories that are not in the journal yet."""
    left = [seed for seed in seeds if seed not in journal.known]
    for outcome in outcomes(settings, left, processes):
        journal.note(outcome)
        watch(outcome)
        if outcome.failed and fail_fast:
            return
