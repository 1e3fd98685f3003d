"""Transfers of the state between this worker and others, in the generation in use (Elan IV; design: worker-runtime 5).

Holders begin to send before they compute the generation's first step (`send`), and have sent everything before its
update (`sent`). A joining worker gets the header first (`receive`), takes part in that step, and takes the state over
when all of it has arrived (`take`). The script's registered values follow at the next boundary (`exchange_values`).
`replication` carries the tensors.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from ..communication.communicator import Communicator, CommunicatorBroken
from ..compiled import Compiled
from ..driver import Control
from ..events import EnterGeneration, Instruction, StateArriving, StateTaken, TransfersCompleted, ValuesExchanged
from ..interlude import end_of
from ..script import Script
from .held import HeldState, next_epoch
from .replication import Incoming, Replication

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """A state that is being received; the header is complete.

    `instruction`: the worker's task while the tensors arrive.
    """

    incoming: Incoming
    instruction: Instruction


class StateTransfers:
    """This worker's part in transfers of the state. For the training thread."""

    def __init__(
        self, control: Control, held: HeldState, script: Script, device: torch.device, compiled: Compiled | None = None
    ) -> None:
        """compiled: None outside a cluster."""
        self._control = control
        self._held = held
        self._script = script
        self._device = device
        self._compiled = compiled
        self._replication: Replication | None = None  # until all joining workers have the whole state

    def enter(self, entered: EnterGeneration, communicator: Communicator) -> None:
        """Begin a generation with the transfers of its first step."""
        takes_part = any(entered.rank in (each.source_rank, each.target_rank) for each in entered.transfers)
        self._replication = Replication(communicator, entered.transfers) if takes_part else None

    def forget(self) -> None:
        """Give up the transfers of the generation in use."""
        self._replication = None

    # -- giving

    def send(self) -> None:
        """Begin to send the state to joining workers; it must not change until `sent` has returned."""
        assert self._replication is not None
        held = self._held
        header, tensors = (
            held.header({"applied": held.next_step - 1, "epoch": self._script.epoch}),
            held.parts.tensors(),
        )
        header = {**held.to_give(header), **(self._compiled.offer() if self._compiled is not None else {})}
        self._replication.give(header, tensors, mutable=held.parts.changing(tensors))

    def sent(self) -> None:
        """Block until this worker has sent everything. Raises CommunicatorBroken."""
        if self._replication is not None:
            self._replication.sent()

    def send_at_the_end(self) -> None:
        """Begin to send the state when the job has no step left, so that the loss of a joining worker is harmless."""
        try:
            self.send()
        except CommunicatorBroken:
            log.info("a joiner has gone before the state could be sent to it; the job is over anyway")

    def complete(self) -> TransfersCompleted:
        """Block until all is sent when the job has no step left, so that the loss of a joining worker is harmless."""
        try:
            self.sent()
        except CommunicatorBroken:
            log.info("a joiner has gone before it had the state; the job is over anyway")
        return TransfersCompleted()

    # -- taking

    def receive(self, keep_own: bool) -> Arrival:
        """Wait for the header of the state, and begin to receive its tensors.

        keep_own: keep this worker's own state whole until all of the new one has arrived. If the sender is lost on the
        way, a survivor that was one step behind still has its own state. A new worker has nothing to lose but the
        script's initial values.

        Raises CommunicatorBroken, OtherCode, Unlike.
        """
        assert self._replication is not None
        instruction: Instruction | None = None

        def places(header: dict[str, Any]) -> list[torch.Tensor] | None:
            nonlocal instruction
            self._held.header_came(header)
            if self._compiled is not None:
                self._compiled.take(header)
            applied = int(header["counters"]["applied"])
            self._control.tell(StateArriving(applied, next_epoch(header), end_of(header)))
            instruction = self._control.next()
            return None if keep_own else self._held.parts.adopt(header)

        incoming = self._replication.take(self._device, places)
        assert instruction is not None
        return Arrival(incoming, instruction)

    def take(self, arrival: Arrival) -> None:
        """Wait for the tensors, and take the state over. Raises CommunicatorBroken."""
        incoming = arrival.incoming
        tensors = incoming.wait()
        if incoming.places is None:
            self._held.put(incoming.header, tensors)
        applied, epoch = self._held.take(incoming.header)
        settled = self._held.agreed_values.decisions
        self._control.tell(StateTaken(applied, epoch, next_epoch(incoming.header), settled))

    # -- changes made by the script's code

    def hand_over(self) -> None:
        """Send joining workers the changes so far in a generation's first step, before they run code that depends on
        them.

        A joining worker waits for them. Raises CommunicatorBroken.
        """
        replication = self._replication
        if replication is None:
            return
        if replication.source is None:
            replication.send_trailer({"epoch": self._held.epoch, "changes": self._held.values.changes()})
        else:
            theirs = replication.receive_trailer()
            self._held.take_changes(int(theirs["epoch"]), theirs["changes"])

    def exchange_values(self) -> ValuesExchanged:
        """After a generation's first step, hand over the changes that the script's code has made in it.

        Raises CommunicatorBroken.
        """
        replication, self._replication = self._replication, None
        assert replication is not None
        if replication.source is None:
            changes = self._held.values.changes()
            replication.send_trailer({"epoch": self._held.epoch, "changes": changes})
            return ValuesExchanged(self._script.epoch)
        theirs = replication.receive_trailer()
        epoch = int(theirs["epoch"])
        self._held.take_changes(epoch, theirs["changes"])
        return ValuesExchanged(epoch)
