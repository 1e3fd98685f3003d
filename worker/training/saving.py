"""The checkpoints of one worker: when the next one is due, which are being written, which step is safe. Pure.

The training goes on while a checkpoint is written. Of several that are under way the writer may leave those out that a newer one
overtakes.
"""

from __future__ import annotations

from ...protocol import times
from ..events import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from ..state.lineages import Name

SAVES_UNDER_WAY = 3  # one is written, one waits for its turn, one is copied


class Checkpoints:
    """`every_s`: between two; None: there are none. `directory`: where they are; "": not known."""

    def __init__(self, every_s: float | None, now: float, directory: str = "") -> None:
        self._every_s = every_s
        self._directory = directory
        self.file = ""  # the newest durable one, if it was written here
        self._due_at = now + every_s if every_s is not None else float("inf")
        self._begun = 0
        self._under_way: dict[int, tuple[SaveCheckpoint, float]] = {}  # by number, the newest last: since when
        self.trouble = ""  # with the last one
        self._took_s: float | None = None  # the last one
        self._expected_s = 0.0
        self.saved: int | None = None  # step of the newest durable one
        self.saved_generation = 0  # whose checkpoint that is now
        self.durable: tuple[int, int] | None = None  # its step and epoch

    @property
    def wanted(self) -> bool:
        """Does the job have checkpoints at all?"""
        return self._every_s is not None

    def expect(self, size: int) -> None:
        """One has about so many bytes."""
        self._expected_s = min(size / times.SLOW_STORAGE_BYTES_S, times.MOST_SAVE_S)

    @property
    def lasts_s(self) -> float:
        """How long the last one took; before the first, how long it may last. A preempted job gets that time."""
        return self._expected_s if self._took_s is None else self._took_s

    def due(self, now: float) -> bool:
        """Is it time for the next one? If so, the time until the one after it begins."""
        if self._every_s is None or now < self._due_at:
            return False
        self._due_at = now + self._every_s
        return True

    def wanted_now(self, now: float, step: int) -> None:
        """One of this step or a later one is wanted at the next boundary, if none is there or on its way."""
        on_its_way = any(save.step >= step for save, _ in self._under_way.values())
        if not on_its_way and (self.saved is None or self.saved < step):
            self._due_at = now

    def begin(self, now: float, step: int, epoch: int, generation: int) -> SaveCheckpoint:
        """Write the state after `step`."""
        self._begun += 1
        save = SaveCheckpoint(self._begun, step, epoch, generation)
        self._under_way[self._begun] = save, now
        while len(self._under_way) > SAVES_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]  # it has been left out
        return save

    def loaded(self, step: int, epoch: int, generation: int) -> None:
        """One has been read, and belongs to this generation from now on."""
        self._is_durable(step, epoch, generation)
        self.file = ""

    def ended(self, now: float, fact: CheckpointSaved | CheckpointFailed, generation: int) -> bool:
        """The writer has come to an end with one, in this generation. False: nobody waits for that one any more."""
        under_way = self._under_way.pop(fact.number, None)
        if under_way is None:
            return False
        save, begun = under_way
        if isinstance(fact, CheckpointSaved):
            self._under_way = {number: other for number, other in self._under_way.items() if number > fact.number}
            self._is_durable(save.step, save.epoch, save.generation)
            self.file = f"{self._directory}/{Name.of(save.generation, save.step).file}" if self._directory else ""
            self._took_s, self.trouble = now - begun, ""
        elif save.generation == generation:  # else others save now
            self.trouble = f"no checkpoint of step {save.step}: {fact.reason}"
        return True

    def _is_durable(self, step: int, epoch: int, generation: int) -> None:
        self.saved, self.saved_generation, self.durable = step, generation, (step, epoch)

    def is_newest(self, number: int) -> bool:
        """Is it the one that was begun last?"""
        return number == self._begun
