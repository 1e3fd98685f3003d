"""The values that one worker's script carries from step to step beside the job's state, looked at and compared by name.

A look is taken before the script's first loop body (`batches_begin`), and another one where workers are compared (`crosscheck`):
`look`. What differs between two workers' looks, and has been changed by a loop since it began, is state that a newcomer does not
have. `explain` puts it into words, with the line of the script and the line to write instead.

The module is the shell of three pure ones: `reachable` looks, `assigned` reads the script's source, `advice` has the words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

from . import advice
from .assigned import Sources
from .kept import Difference, Reach, differences
from .own_code import loop_frame
from .reachable import leave_out, look, names_bound


class Carried:
    """Those of one worker's script. For the training thread."""

    def __init__(self, known: Callable[[], Iterable[Any]], beside: Mapping[str, Any], batch_size: int | None) -> None:
        """known: the objects that the runtime carries itself. beside: objects by name that the script may have no variable for.
        batch_size: of one virtual worker."""
        self._beside = beside
        self._known = known
        self._is_local: Callable[[str], bool] = lambda name: False
        self._batch_size = batch_size
        self._frame: FrameType | None = None
        self._bound: frozenset[str] = frozenset()
        self._sources = Sources(None)
        self._begun: Reach | None = None  # before the first loop body

    def find(self, frame: FrameType | None, is_local: Callable[[str], bool]) -> None:
        """The loop over epochs is about to begin. frame: of the script's call. is_local: may this name differ (`run.local`)?"""
        self._is_local = is_local
        self._frame = loop_frame(frame)
        self._bound = names_bound(self._frame)
        self._sources = Sources.of(self._frame)

    def batches_begin(self) -> None:
        """A loop over batches begins. Before the first one: remember what the script has."""
        if self._begun is None and self._frame is not None:
            self._bound = (self._bound | names_bound(self._frame)) - self._sources.temporaries()
            self._begun = self._look()

    def look(self) -> list[Any] | None:
        """What the script has now, as plain values; None: its loop cannot be looked into."""
        if self._begun is None:
            return None
        return self._look().since(self._begun).without(self._is_local).plain()

    def _look(self) -> Reach:
        return look(self._frame, self._bound, leave_out(self._known()), beside=self._beside)

    def close(self) -> None:
        """The loop is over. Its frame is not kept longer: it holds all that the script has."""
        self._frame = None
        self._begun = None

    # -- two workers

    def changed(self, ones: Any, others: Any) -> list[Difference]:
        """The names under which two workers' looks (`look`) differ, and that a loop has changed. Raises PeerError."""
        if ones is None or others is None:
            return []
        return [each for each in differences(Reach.of(ones), Reach.of(others)) if each.changed]

    def explain(self, ones: Any, others: Any, workers: tuple[str, str]) -> str:
        """Why two workers compute different gradients, as far as their looks say: names, or code that cannot be looked into."""
        if ones is None or others is None:
            return advice.UNSEEN
        first, second = Reach.of(ones), Reach.of(others)
        opaque = tuple(dict.fromkeys((*first.opaque, *second.opaque)))
        found = differences(first, second)
        found = [each for each in found if each.changed] or found
        return advice.explain(found, workers, self._sources, opaque=opaque, batch_size=self._batch_size)

    def sentences(self, found: list[Difference], workers: tuple[str, str]) -> str:
        """One for each of the first names: what it is on both workers, where it is changed, and what to write."""
        return advice.sentences(found, workers, self._sources, self._batch_size)
