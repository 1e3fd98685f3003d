"""Optimizer state that is divided among a job's workers (ZeRO-1: Rajbhandari et al., 2020), for the training thread.

Every worker has all parameters and, in each step, the whole gradient. So a script finds the same parameters and
gradients as without division, and clipping has the bits of plain training. Of the optimizers' state a worker keeps the
pieces that it owns, and those of another owner that it mirrors (`division`).

*Before the control word is confirmed* (`prepare`) nothing of the state changes. In a generation's first step the
workers exchange the numbers of the steps whose state they have, and send each other the pieces that the new division
assigns to them. Then each owner computes the new values of its parameters' elements from copies, block by block, and
all gather them in the memory of the gradient, of which only own and mirrored elements are still needed. The last
collective is a confirmation: a worker that completes it knows that every other has received everything.

*Afterwards* (`put`, `update`, `committed`) no message is needed: own and mirrored pieces are updated in place, and the
other parameters are copied from the gradient's memory.

A worker whose confirmation does not arrive gives the step up, while another may have applied it. It then keeps the
inputs of the update (`given_up`) until it learns the step of the others' state (`header_came`): if they have applied
the step, it makes up for the update of its pieces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...protocol.errors import UserError
from ..communication.communicator import Communicator, CommunicatorBroken
from ..events import Whole
from ..gradients.layout import Gradient, Layout
from ..inband import exchange
from .division import Division, StateLost, first_division, moves, next_division, surviving
from .elementwise import check_elementwise, check_hooks
from .intervals import Grid, Interval, common
from .pieces import (
    Piece,
    Work,
    compose,
    copied,
    cut,
    memory_of,
    of_whole,
    on_host,
    per_element,
    to_whole,
    trade,
    update,
)
from .wholeness import WholeWishes

Options = list[list[dict[str, Any]]]  # of each optimizer's groups
NO_STATE = -2  # the step of whose state a new worker has pieces
NO_OPTIMIZER = -1  # position of the optimizer of a parameter that none updates


@dataclass(frozen=True)
class _Block:
    """The part of the gather that is made at once."""

    flat: int
    longest: int  # elements that a worker sends
    sent: list[tuple[Piece, Interval, int]]  # owned parts of pieces, and their places among the elements sent
    taken: list[
        tuple[Interval, int]
    ]  # parts that this worker does not keep, and their places among all elements received


@dataclass(frozen=True)
class _Plan:
    """A division, this worker's pieces of it in ascending order, and the exchanges that each step needs for them."""

    division: Division
    pieces: list[Piece]
    blocks: list[_Block]
    others: list[tuple[int, Interval]]  # parts that this worker does not keep, with their parameters' positions


@dataclass
class _Pending:
    """The plan that holds from the update of `step` on."""

    step: int
    plan: _Plan
    gradient: Gradient  # and the new values of elements that this worker does not keep


@dataclass
class _Log:
    """Inputs to the update of a step that was given up: gradients by piece, and the groups' options."""

    pending: _Pending
    gradients: list[torch.Tensor]
    options: Options


class DividedState(WholeWishes):
    """The optimizers' state of a job of which each worker keeps a part. A participant in the exchange within a step."""

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Raise UserError, naming the first optimizer whose state cannot be divided."""
        super().__init__()
        check_elementwise(optimizers)
        self.optimizers = list(optimizers)
        self._workers: list[str] = []
        self._servers: list[str] = []
        self._rank = 0
        self._begins = True  # the generation's first step has not been applied
        self._layout: Layout | None = None
        self._grid: Grid | None = None
        self._division: Division | None = None
        self._sole: str | None = None  # without a division: the worker with the whole state; None: there is no state
        self._loaded: dict[torch.Tensor, dict[str, Any]] = {}  # a whole state that was loaded, by parameter
        self._plan: _Plan | None = None  # of the last update in which this worker took part
        self._step = NO_STATE  # the applied step of which this worker has its pieces
        self._pending: _Pending | None = None
        self._log: _Log | None = None
        self._others: list[Piece] = []  # other workers' pieces, where this worker wants the whole state
        self._work_due: list[Work] = []  # of the update in progress

    # -- generations, and states of others

    def enter(self, workers: Sequence[str], servers: Sequence[str], rank: int) -> None:
        """Begin a generation of these workers. servers: of each of them."""
        self._workers, self._servers, self._rank = list(workers), list(servers), rank
        self._begins = True

    @property
    def nbytes(self) -> int:
        """Bytes of the state that this worker keeps."""
        values = [value for piece in self._pieces() for value in piece.state.values()]
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))

    def _pieces(self) -> list[Piece]:
        return [] if self._plan is None else self._plan.pieces

    def stands_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a state has for a tensor of the model: all of it."""
        return tensor.detach()

    def expect(self, whole: bool) -> None:
        """Do nothing: parameters are whole in any state that comes."""

    def plain(self) -> dict[str, Any]:
        """Return the division of the present state as plain values, equal on all workers."""
        return {"sole": self._sole} if self._division is None else self._division.plain()

    def header_came(self, values: Mapping[str, Any], applied: int) -> None:
        """Take note of the division of the state after the step `applied`, which this worker receives.

        If the worker has given that step up, and has kept the inputs of its update, it makes the update now.
        """
        log, self._log = self._log, None
        if log is not None and log.pending.step == applied:
            self._make_up(log)
        if self._step != applied:
            self._plan, self._step, self._loaded = None, NO_STATE, {}
        if "owners" in values:
            self._division, self._sole = Division.of_plain(values), None
        else:
            self._division, self._sole = None, values["sole"]

    def take_whole(self, applied: int) -> None:
        """Take the whole state from the optimizers, into which it was loaded. It is that after the step `applied`."""
        self._division, self._sole = None, self._workers[self._rank]
        self._plan, self._log, self._step = None, None, applied
        self._loaded = {parameter: state for each in self.optimizers for parameter, state in each.state.items()}
        for each in self.optimizers:
            each.state.clear()

    # -- a step, before anything is applied

    def prepare(self, communicator: Communicator, layout: Layout, gradient: Gradient, applied: int) -> None:
        """Compute and gather the parameters' new values, in the memory of the gradient. A collective.

        applied: the last applied step. Raises CommunicatorBroken, with nothing changed; StateLost, on all workers.
        """
        self._log = None
        check_hooks(self.optimizers)
        grid = self._lay_out(layout)
        plan = self._plan
        if self._begins or plan is None:
            plan = self._new_plan(grid, *self._divide(communicator, grid, layout, applied))
        self._pending = _Pending(applied + 1, plan, gradient)
        if communicator.size == 1:
            return
        self._gather(communicator, plan, gradient)
        try:
            self._confirm(communicator)
        except CommunicatorBroken:
            gradients = [_part(gradient, each.interval).clone() for each in plan.pieces]
            self._log = _Log(self._pending, gradients, _options(self.optimizers))
            raise

    def _confirm(self, communicator: Communicator) -> None:
        """Block until all workers have received everything. Raises CommunicatorBroken; others may be confirmed all the same."""
        communicator.wait(communicator.all_reduce_max(torch.zeros(1, dtype=torch.int64)))

    def given_up(self) -> None:
        """Forget the step in progress, except for the inputs with which its update can be made later."""
        self._pending = None
        self.wish = Whole.NOT

    def _lay_out(self, layout: Layout) -> Grid:
        """Return the grid of the trained parameters. Raises UserError if they are not those of earlier steps."""
        self._groups = {
            id(parameter): (number, group)
            for number, optimizer in enumerate(self.optimizers)
            for group, options in enumerate(optimizer.param_groups)
            for parameter in options["params"]
        }
        if self._layout is layout:
            assert self._grid is not None
            return self._grid
        if self._layout is not None and [*map(id, layout.parameters)] != [*map(id, self._layout.parameters)]:
            raise UserError(
                "sharding: optimizer divides the state of the parameters that the first step trains, and this step trains "
                "others: leave the option out for a model of which parts are frozen or added while it trains"
            )
        positions: list[list[int]] = [[] for _ in layout.sizes]  # of the parameters with elements, by flat tensor
        for position, parameter in enumerate(layout.parameters):
            if parameter.numel():
                positions[layout.place(position)[0]].append(position)
        self._grid = Grid([[layout.parameters[position].numel() for position in flat] for flat in positions])
        self._layout, self._positions = layout, positions
        return self._grid

    def _divide(
        self, communicator: Communicator, grid: Grid, layout: Layout, applied: int
    ) -> tuple[Division, list[Piece]]:
        """Return the new division and this worker's pieces of it; the workers send each other the missing pieces."""
        me = self._workers[self._rank]
        payloads = exchange(communicator, {"step": self._step, "division": self.plain()})
        having = {worker for worker, payload in zip(self._workers, payloads, strict=True) if payload["step"] == applied}
        plain = next((payload["division"] for payload in payloads if payload["step"] == applied), {"sole": None})
        if "owners" in plain:
            present = Division.of_plain(plain)
        elif plain["sole"] is not None:
            present = first_division(grid, [plain["sole"]], [""])
        elif all(payload["division"] == plain for payload in payloads):  # no step has been applied
            target = first_division(grid, self._workers, self._servers)
            return target, self._compose(target, self._of_whole(self._initial()))
        else:
            raise StateLost(f"no worker has the optimizer state of step {applied}")
        own: list[Piece] = []
        if me in having:
            own = self._of_whole(self._loaded) if "owners" not in plain else self._pieces()
        target = next_division(grid, surviving(present, having), self._workers, self._servers)
        outgoing = [
            (self._workers.index(move.target), cut(piece, part))
            for move in moves(present, having, target)
            if move.source == me
            for piece in own
            if (part := common(move.interval, piece.interval)) is not None
        ]
        received = trade(communicator, outgoing, _devices(layout)) if communicator.size > 1 else []
        kept = [
            cut(piece, part)
            for interval in present.kept_by(me)
            for piece in own
            if (part := common(interval, piece.interval)) is not None
        ]
        return target, self._compose(target, [*kept, *received])

    def _initial(self) -> dict[torch.Tensor, dict[str, Any]]:
        """Return the optimizers' state before the first step: state that the script has loaded, or Adagrad's."""
        return {parameter: state for each in self.optimizers for parameter, state in each.state.items()}

    def _of_whole(self, states: Mapping[torch.Tensor, Mapping[str, Any]]) -> list[Piece]:
        assert self._layout is not None
        return [
            of_whole(parameter, self._span(position), states.get(parameter, {}))
            for position, parameter in enumerate(self._layout.parameters)
            if parameter.numel()
        ]

    def _compose(self, division: Division, found: Sequence[Piece]) -> list[Piece]:
        """Return this worker's pieces, of one parameter each, from pieces that contain them."""
        assert self._grid is not None
        intervals = division.kept_by(self._workers[self._rank])
        wanted = [part for interval in intervals for _, part in self._grid.parameters_in(interval)]
        return [compose(each, found) for each in wanted]

    def _span(self, position: int) -> Interval:
        """Return the place of a whole parameter."""
        assert self._layout is not None
        flat, begin = self._layout.place(position)
        return Interval(flat, begin, begin + self._layout.parameters[position].numel())

    # -- gathering the parameters' new values

    def _new_plan(self, grid: Grid, division: Division, pieces: list[Piece]) -> _Plan:
        me = self._workers[self._rank]
        rank_of = {worker: rank for rank, worker in enumerate(self._workers)}
        begins = [each.interval for each in pieces]
        blocks: list[_Block] = []
        first = 0  # of the owners' intervals that may reach into the block
        for block in grid.blocks:
            while common(division.owners[first].interval, block) is None:
                first += 1
            sizes = dict.fromkeys(self._workers, 0)
            sent: list[tuple[Piece, Interval, int]] = []
            taken: list[tuple[Interval, int, int]] = []
            number = first
            while number < len(division.owners):
                owned = division.owners[number]
                if (part := common(owned.interval, block)) is None:
                    break
                if owned.owner == me:
                    for piece in pieces[max(0, bisect_right(begins, part) - 1) :]:
                        if piece.interval > part and common(piece.interval, part) is None:
                            break
                        if (own := common(piece.interval, part)) is not None:
                            sent.append((piece, own, sizes[me] + own.begin - part.begin))
                elif me not in division.holders(owned):
                    taken.append((part, rank_of[owned.owner], sizes[owned.owner]))
                sizes[owned.owner] += part.size
                number += 1
            longest = max(sizes.values())
            blocks.append(_Block(block.flat, longest, sent, [(each, rank * longest + at) for each, rank, at in taken]))
        return _Plan(division, pieces, blocks, self._elsewhere(begins))

    def _elsewhere(self, kept: Sequence[Interval]) -> list[tuple[int, Interval]]:
        """Return the parts of parameters that are in none of `kept`, in ascending order."""
        assert self._layout is not None
        found: list[tuple[int, Interval]] = []
        for position in range(len(self._layout.parameters)):
            span = self._span(position)
            begin = span.begin
            for each in kept[max(0, bisect_right(kept, span) - 1) :]:
                if (part := common(each, span)) is not None:
                    found += [(position, Interval(span.flat, begin, part.begin))] * (part.begin > begin)
                    begin = part.end
                elif each > span:
                    break
            found += [(position, Interval(span.flat, begin, span.end))] * (span.end > begin)
        return found

    def _gather(self, communicator: Communicator, plan: _Plan, gradient: Gradient) -> None:
        options = _options(self.optimizers)
        for block in plan.blocks:
            memory = gradient.flats[block.flat]
            own = torch.zeros(block.longest, dtype=memory.dtype, device=memory.device)
            work = [
                self._work(copied(piece, part), _part(gradient, part), copies=True) for piece, part, _ in block.sent
            ]
            self._update(work, options)
            for each, (_, part, place) in zip(work, block.sent, strict=True):
                own[place : place + part.size] = each.values
            table = torch.zeros(communicator.size * block.longest, dtype=memory.dtype, device=memory.device)
            communicator.wait(communicator.all_gather(table, own))
            for part, place in block.taken:
                memory[part.begin : part.end] = table[place : place + part.size]

    def _work(self, piece: Piece, gradient: torch.Tensor, copies: bool = False) -> Work:
        assert self._grid is not None
        assert self._layout is not None
        ((number, part),) = self._grid.parameters_in(piece.interval)
        position = self._positions[part.flat][number]
        begin = part.begin - self._span(position).begin
        parameter = self._layout.parameters[position]
        values = memory_of(parameter)[begin : begin + part.size]
        group = self._groups.get(id(parameter), (NO_OPTIMIZER, 0))
        return Work(*group, piece, values.clone() if copies else values, gradient)

    def _update(self, work: Sequence[Work], options: Options) -> None:
        for number, optimizer in enumerate(self.optimizers):
            update(optimizer, options[number], [each for each in work if each.optimizer == number])

    # -- a step that all can apply

    def put(self) -> None:
        """Copy the new values of the parameters that this worker does not update."""
        assert self._pending is not None
        assert self._layout is not None
        plan, gradient = self._pending.plan, self._pending.gradient
        for parameter in self._layout.parameters:
            parameter.grad = None  # its memory has new values of parameters
        with torch.no_grad():
            for position, part in plan.others:
                begin = part.begin - self._span(position).begin
                memory_of(self._layout.parameters[position])[begin : begin + part.size] = _part(gradient, part)
        self._work_due = [self._work(each, _part(gradient, each.interval)) for each in plan.pieces]

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this worker's pieces of one optimizer, in place of its `step`."""
        number = self.optimizers.index(optimizer)
        update(optimizer, optimizer.param_groups, [each for each in self._work_due if each.optimizer == number])

    def committed(self) -> None:
        """End the step, whose update has been made."""
        pending, self._pending = self._pending, None
        assert pending is not None
        self._hold(pending)
        self._work_due = []

    def _hold(self, pending: _Pending) -> None:
        self._division, self._sole = pending.plan.division, None
        self._plan, self._step = pending.plan, pending.step
        self._begins, self._loaded, self._others, self.whole_at = False, {}, [], None
        for each in self.optimizers:
            each.state.clear()

    def _make_up(self, log: _Log) -> None:
        """Make the update of a step that was given up; the parameters come with the others' state."""
        pairs = zip(log.pending.plan.pieces, log.gradients, strict=True)
        self._update([self._work(piece, gradient, copies=True) for piece, gradient in pairs], log.options)
        self._hold(log.pending)
        self._begins = True

    # -- the whole state, for a checkpoint

    def assemble(self, communicator: Communicator, finished: bool, leads: bool) -> Whole:
        """Send the owned pieces to the workers that want the whole state, which keep it in the host's memory.

        A collective if some worker wishes for it, or if the job is over: then the leader saves its state. Returns the
        purpose for which the state is whole now; for a worker that is alone, every purpose.
        """
        wanted = (finished and leads) or self.wish is not Whole.NOT
        self.wish = Whole.NOT
        if communicator.size == 1:
            self.whole_at, self._others = self._step, []
            return Whole.TO_END
        greatest = Whole.TO_END if finished else self.greatest_wish
        if greatest is Whole.NOT:
            return greatest
        assert self._layout is not None
        try:
            payloads = exchange(communicator, {"wants": wanted})
            targets = [rank for rank, payload in enumerate(payloads) if payload["wants"] and rank != self._rank]
            outgoing = [(rank, piece) for rank in targets for piece in self._owned()]
            self._others = trade(communicator, outgoing, _devices(self._layout), host=True)
        except CommunicatorBroken:  # the next step raises it again
            return Whole.NOT
        if wanted:
            self.whole_at = self._step
        return greatest

    def _owned(self) -> list[Piece]:
        assert self._division is not None
        me = self._workers[self._rank]
        return [
            cut(piece, part)
            for each in self._division.owners
            if each.owner == me
            for piece in self._pieces()
            if (part := common(each.interval, piece.interval)) is not None
        ]

    @contextmanager
    def whole(self) -> Iterator[frozenset[int]]:
        """Give the optimizers, within the context, the whole state of the last applied step.

        Raises UserError if the whole state is not on this worker.

        Yields addresses of tensors that are in the host's memory and belong to an accelerator.
        """
        if self.whole_at is None or self.whole_at != self._step:
            raise UserError(f"the divided optimizer state of step {self._step} is not on this worker")
        assert self._layout is not None
        owned = self._owned()
        here = [*(on_host(each) for each in owned), *self._others] if self._others else owned
        staged: set[int] = set()
        try:
            for position, parameter in enumerate(self._layout.parameters):
                if not parameter.numel():
                    continue
                whole = compose(self._span(position), here)
                if (state := to_whole(parameter, whole)) and id(parameter) in self._groups:
                    self.optimizers[self._groups[id(parameter)][0]].state[parameter] = state
                if parameter.device.type != "cpu" and self._others:
                    staged |= {value.data_ptr() for value in per_element(whole)}
            yield frozenset(staged)
        finally:
            for each in self.optimizers:
                each.state.clear()


def _devices(layout: Layout) -> list[torch.device]:
    return [device for _, device in layout.kinds]


def _part(gradient: Gradient, interval: Interval) -> torch.Tensor:
    return gradient.flats[interval.flat][interval.begin : interval.end]


def _options(optimizers: Sequence[torch.optim.Optimizer]) -> Options:
    return [
        [
            {
                key: value.clone() if isinstance(value, torch.Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in each.param_groups
        ]
        for each in optimizers
    ]
