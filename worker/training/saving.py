"""The checkpoints of one worker: when the next one is due, which are being written, which step is durable. Pure.

Training continues while a checkpoint is written. The writer may leave out checkpoints that a newer one overtakes.
"""

from __future__ import annotations

from ...protocol import times
from ..events import CheckpointFailed, CheckpointSaved, SaveCheckpoint
from ..lineages import Name

SAVES_UNDER_WAY = 3  # one is written, one waits to be written, one is copied


class Checkpoints:
    """Checkpoints of one worker. `every_s`: seconds between two; None: no checkpoints. `directory`: "" if unknown."""

    def __init__(self, every_s: float | None, now: float, directory: str = "") -> None:
        self._every_s = every_s
        self._directory = directory
        self.file = ""  # file of the newest durable checkpoint, if this worker has written it
        self._due_at = now + every_s if every_s is not None else float("inf")
        self._begun = 0
        # by number, the newest last: the save and its beginning
        self._under_way: dict[int, tuple[SaveCheckpoint, float]] = {}
        self.trouble = ""  # reason of the last failure; "": none
        self._took_s: float | None = None  # duration of the last checkpoint in seconds
        self._expected_s = 0.0
        self.saved: int | None = None  # step of the newest durable checkpoint
        self.saved_generation = 0  # generation in that checkpoint's name
        self.durable: tuple[int, int] | None = None  # its step and epoch

    @property
    def wanted(self) -> bool:
        """Whether the job has checkpoints at all."""
        return self._every_s is not None

    def expect(self, size: int) -> None:
        """Set the approximate size of a checkpoint in bytes."""
        self._expected_s = min(size / times.SLOW_STORAGE_BYTES_S, times.MOST_SAVE_S)

    @property
    def lasts_s(self) -> float:
        """Duration of the last checkpoint; before the first, the longest expected one. A preempted job gets that time."""
        return self._expected_s if self._took_s is None else self._took_s

    def due(self, now: float) -> bool:
        """Return whether the next checkpoint is due; if so, start the interval of the one after it."""
        if self._every_s is None or now < self._due_at:
            return False
        self._due_at = now + self._every_s
        return True

    def wanted_now(self, now: float, step: int) -> None:
        """Make a checkpoint due at the next boundary, if none of this step or a later one exists or is being written."""
        on_its_way = any(save.step >= step for save, _ in self._under_way.values())
        if not on_its_way and (self.saved is None or self.saved < step):
            self._due_at = now

    def begin(self, now: float, step: int, epoch: int, generation: int) -> SaveCheckpoint:
        """Return the instruction to write the state after `step`."""
        self._begun += 1
        save = SaveCheckpoint(self._begun, step, epoch, generation)
        self._under_way[self._begun] = save, now
        while len(self._under_way) > SAVES_UNDER_WAY:
            del self._under_way[next(iter(self._under_way))]  # the writer has left it out
        return save

    def loaded(self, step: int, epoch: int, generation: int) -> None:
        """Take note of a checkpoint that has been read, and belongs to this generation from now on."""
        self._is_durable(step, epoch, generation)
        self.file = ""

    def ended(self, now: float, fact: CheckpointSaved | CheckpointFailed, generation: int) -> bool:
        """Handle the result of a checkpoint, in this generation. Returns False if the checkpoint has been left out."""
        under_way = self._under_way.pop(fact.number, None)
        if under_way is None:
            return False
        save, begun = under_way
        if isinstance(fact, CheckpointSaved):
            self._under_way = {number: other for number, other in self._under_way.items() if number > fact.number}
            self._is_durable(save.step, save.epoch, save.generation)
            self.file = f"{self._directory}/{Name.of(save.generation, save.step).file}" if self._directory else ""
            self._took_s, self.trouble = now - begun, ""
        elif save.generation == generation:  # in another generation other workers save
            self.trouble = f"no checkpoint of step {save.step}: {fact.reason}"
        return True

    def _is_durable(self, step: int, epoch: int, generation: int) -> None:
        self.saved, self.saved_generation, self.durable = step, generation, (step, epoch)

    def is_newest(self, number: int) -> bool:
        """Return whether this checkpoint was begun last."""
        return number == self._begun
