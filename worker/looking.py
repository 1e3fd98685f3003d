"""One script's values from its loop's beginning on: what was bound there, how it was, and how it is now (`reachable`).

A worker makes one of these where its loop begins (`begin`, at `run.epochs()`), and looks where its first pass over the batches
begins (`first_batches`), before any loop body has run. From then on `now` gives what is to be compared with another worker's, at
the same boundary between two steps, after registered values have come. All of this is for the thread that runs the script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from ..protocol.errors import PeerError
from . import advice
from .assigned import Sources
from .kept import Difference, Kind, Reach, differences
from .own_code import loop_frame
from .reachable import Limits, carried, look, names_bound, names_of
from .save_calls import is_part
from .state.training_state import TrainingState


def _nothing_is_local(name: str) -> bool:
    return False


@dataclass
class Looking:
    """Of one script.

    state: what the job carries, which is left out. is_local: may this name differ (`local_names`)? beside: objects to look at for
    which the script may have no variable, by the name to tell: `{"dataset": dataset}`. known: ids of further objects to leave out
    (`reachable.leave_out`), such as the run and its batches.
    """

    state: TrainingState
    is_local: Callable[[str], bool] = _nothing_is_local
    beside: Mapping[str, Any] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    batch_size: int | None = None  # of one virtual worker
    limits: Limits = field(default_factory=Limits)
    _code: CodeType | None = None  # of the function or module that holds the loop
    _sources: Sources = field(default_factory=lambda: Sources(None))
    _bound: frozenset[str] = frozenset()
    _begun: Reach | None = None
    _derived: frozenset[str] = frozenset()  # variables that the code at an epoch's beginning computes in each epoch
    _epoch: Reach | None = None  # these, when the present pass began
    _carried: frozenset[str] = (
        frozenset()
    )  # variables for what the job carries: what else such an object keeps is not saved

    def begin(self, frame: FrameType | None) -> None:
        """The loop over epochs begins. frame: any from that of its call inwards."""
        frame = loop_frame(frame)
        self._code = None if frame is None else frame.f_code
        self._sources = Sources.of(frame)
        self._bound = names_bound(frame)

    def first_batches(self, frame: FrameType | None) -> None:
        """A pass over the batches begins. Before the first one no loop body has run: the script's values are noted then."""
        frame = loop_frame(frame, self._code)
        if self._begun is None:
            before, self._bound = self._bound, (self._bound | names_bound(frame)) - self._sources.temporaries()
            self._bound |= self._sources.sometimes
            self._begun = self._look(frame, self._bound)
            self._carried = names_of(frame, carried(self.state) | self.known)
            self._derived = frozenset(
                name
                for name, node in self._begun.names.items()
                if node.kind is not Kind.PLAIN
                and name not in self.beside  # made before the loop, though no variable of the script has it
                and (name not in before or self._sources.at_epochs(name) is not None)
            )
        if self._derived:
            self._epoch = self._look(frame, self._derived, beside={})

    @property
    def derived(self) -> Reach | None:
        """Teachers, pseudo-labels and other values, but for numbers, that the code at the present epoch's beginning has made, as
        they were before the epoch's first loop body. None: there is no such code."""
        return self._epoch

    def now(self, frame: FrameType | None) -> Reach:
        """What the script keeps now, without the names that may differ. frame: any within the loop."""
        seen = self._look(loop_frame(frame, self._code), self._bound)
        return seen.since(self._begun if self._begun is not None else seen)

    def plain(self, frame: FrameType | None) -> list[Any]:
        """`now` and `derived`, for MessagePack. `of_plain` is the reverse. frame: as for `now`."""
        return [self.now(frame).plain(), self._epoch.plain() if self._epoch is not None else None]

    @staticmethod
    def of_plain(plain: Any) -> tuple[Reach, Reach | None]:
        """Raises PeerError for what `plain` has not made."""
        try:
            now, derived = plain
        except (TypeError, ValueError) as error:
            raise PeerError(f"these are no looks at a script's values: {error}") from None
        return Reach.of(now), Reach.of(derived) if derived is not None else None

    def lost(self, theirs: Reach, mine: Reach) -> list[Difference]:
        """The names that a loop has changed on one side and that the other side does not have so. A dataset with a method
        `set_epoch` may derive values of its own there, and a new process' dataset has still to be told the epoch: those do not
        count."""
        told = any(callable(getattr(type(each), "set_epoch", None)) for each in self.beside.values())
        found = [each for each in differences(theirs, mine) if each.changed]
        return [each for each in found if not (told and _is_of_data(each))]

    def explain(self, theirs: Reach, mine: Reach, workers: tuple[str, str]) -> tuple[str, list[Difference]]:
        """Why the two workers differ, as far as it is known, and the names that differ because a loop has changed them; if there
        are none, those that differ from the beginning. workers: names for people, theirs first."""
        found = differences(theirs, mine)
        found = [each for each in found if each.changed] or found
        opaque: Sequence[str] = tuple(dict.fromkeys((*mine.opaque, *theirs.opaque)))
        text = advice.explain(found, workers, self._sources, opaque=opaque, batch_size=self.batch_size)
        return text, found

    def sentences(self, found: Sequence[Difference], workers: tuple[str, str]) -> str:
        """One for each of the first of these names: its value on both workers, the line that changes it, the line to write."""
        return advice.sentences(found, workers, self._sources, self.batch_size)

    def of_error(self, error: BaseException) -> str:
        """Why a newcomer's script has raised this error in code that other workers have run."""
        return advice.of_error(error, self._sources)

    def reason(self, error: NameError | AttributeError) -> str | None:
        """Why the name is unbound, where the loop assigns it in some steps only, and the remedy."""
        return advice.of_unbound(error, self._sources)

    def is_cache(self, difference: Difference) -> bool:
        """Has the dataset itself changed this, as one that keeps what it has read, and no line of the loop?"""
        return _is_of_data(difference) and not self._sources.is_changed_in_loop(difference.name, difference.owners)

    def is_saved(self, difference: Difference) -> bool:
        """Does the script's source say that this goes into a file, or decides when one is saved or the loop ends?"""
        path = re.split(r"[\[(]", difference.name, maxsplit=1)[0]
        return path.partition(".")[0] not in self._carried and is_part(path, self._sources.saved)

    def changed_in_data(self, frame: FrameType | None) -> list[Difference]:
        """What the loop has changed in the dataset since it began. frame: as for `now`."""
        if self._begun is None:
            return []
        found = differences(self._begun, self.now(frame))
        return [each for each in found if _is_of_data(each)]

    def places(self, found: Sequence[Difference]) -> str:
        """These names, each with the line that changes it."""
        lines = [(each.name, self._sources.where(each.name, each.owners)) for each in found]
        return ", ".join(f"{name} ({place})" if place is not None else name for name, place in lines)

    def _look(self, frame: FrameType | None, bound: frozenset[str], beside: Mapping[str, Any] | None = None) -> Reach:
        known = carried(self.state) | self.known
        beside = self.beside if beside is None else beside
        return look(frame, bound, known, self.limits, beside=beside).without(self.is_local)


def _is_of_data(difference: Difference) -> bool:
    return difference.in_data or difference.node.kind is Kind.DATA
