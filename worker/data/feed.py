"""Interfaces between a step and its data, with an index (`sampling`, `loading`) or read in sequence (`streams`)."""

from __future__ import annotations

from typing import Any, Protocol


class Sampling(Protocol):
    """Numbers of samples that the virtual workers have in a step."""

    virtual_workers: int

    @property
    def samples_per_step(self) -> int:
        """Samples in a full step, or the mean."""

    @property
    def steps_per_epoch(self) -> int | None:
        """Steps in an epoch; None if unknown."""

    @property
    def next_epoch(self) -> int | None:
        """Epoch of the next step; None if it follows from the step's number."""

    def total_steps(self, epochs: int) -> int | None:
        """Return the number of steps in a job of `epochs` epochs; None if unknown."""

    def has_samples(self, step: int, virtual_worker: int) -> bool:
        """Return whether the virtual worker has any sample in the step."""

    def weight(self, step: int, virtual_worker: int) -> float:
        """Return the factor of a mean gradient with which the mean over N virtual workers is that over the step's
        samples.
        """


class Batching(Protocol):
    """The micro-batches themselves."""

    reads_any: bool  # whether this worker can read the batch of a virtual worker that another worker hosts

    def assign(self, step: int, hosted: range, end: int | None) -> None:
        """Read for the virtual workers `hosted`, from `step` on until step `end`, if that is known."""

    def begin(self, step: int) -> None:
        """Prepare for `step`."""

    def batch(self, step: int, virtual_worker: int) -> Any:
        """Return the micro-batch, on the device.

        Reading draws random numbers, so the caller seeds the generators afterwards.
        """

    def again(self, step: int) -> Any:
        """Return a batch that some worker trains or has trained, for a worker without a sample in `step`."""

    def elsewhere(self, step: int, virtual_worker: int) -> Any:
        """Return the micro-batch of another worker's virtual worker, on the device. Only if `reads_any`."""

    def example(self, step: int) -> Any:
        """Return a micro-batch of the applied `step`, or one of the same form, on the device: for a loop body without
        effect.
        """

    def applied(self, step: int) -> None:
        """Take note that `step` has been applied."""

    def close(self) -> None:
        """End the processes that read."""
