"""Parameters, gradients and optimizer state that are divided among a job's workers by `fully_shard`, for the training
thread.

Each worker has some rows of each parameter, as FSDP2 cuts them for the present number of workers, and the optimizers'
state of these rows. No other worker has them.

*Changes of the workers.* In a generation's first step, before any loop body, all members send each other the rows that
the new cut assigns to them (`begin_step`), and go on with them when all have confirmed that everything has arrived.
Workers that are going to leave send their rows to those that stay, behind their last update (`hand_over`). Rows that
are lost with a worker are nowhere else: then all workers end, and the job goes on from its last checkpoint (StateLost).

*Checkpoints are whole*, in the format without division. A worker that is going to save gets all rows (`assemble`), in
the host's memory.

*Between two steps the model is whole* where the script has code: between two epochs, and in functions of `run.every`.
Behind the step before, every worker gets all parameters (`step_ends`), beside its rows' part of the optimizers' state.
So evaluations, samples and saved files are computed by each worker alone, and may differ in number. The next step
begins with the rows again. After the job's last step the model stays whole (`gather`).

*Updates* are made from this worker's rows alone, as for a divided optimizer state (`pieces.update`). For clipping, the
norm of each parameter's gradient is computed by one worker that has received all of its rows: a norm of parts would
have other bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from ...protocol.errors import UserError
from ..communication.communicator import Communicator, CommunicatorBroken
from ..events import Whole
from ..inband import exchange
from .division import Division, StateLost, moves
from .elementwise import check_elementwise, check_hooks
from .fsdp import Parameter, alone, layers_of, reset, states_of, watch_calls, without_parts
from .intervals import Interval, Owned, common
from .mesh import Mesh, info
from .pieces import Piece, Work, compose, cut, of_whole, on_host, to_whole, trade, update, update_padded
from .rounds import Rounds
from .wholeness import WholeWishes

VALUES = "fully_shard's parameter"  # key of a parameter's own elements among a piece's values, while it travels
NO_STATE = -2  # the step of whose state a new worker has pieces


class FullySharded(WholeWishes):
    """The parameters and the optimizers' state of a job of which each worker has a part.

    A participant in a step's exchange.
    """

    def __init__(self, model: torch.nn.Module, mesh: Mesh | None, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """mesh: that of `run.mesh()`; None: the script has not called it.

        Raises UserError for what is not supported.
        """
        super().__init__()
        self.layers = layers_of(model, mesh)
        self._states = states_of(model)
        self.parameters: list[Parameter] = [each for layer in self.layers for each in layer.parameters]
        watch_calls(model, self._check_call, lambda: self._rounds is None or not self._rounds.in_body)
        self._by_tensor = {id(each.tensor): each for each in self.parameters}
        check_elementwise(optimizers, "fully_shard")
        self.optimizers = list(optimizers)
        self._check_known()
        if any(group.get("fused") for each in optimizers for group in each.param_groups):
            raise UserError(
                "fully_shard divides parameters at any row, where fused=True of an optimizer may round otherwise: "
                "leave it out"
            )
        self._check_no_hooks()
        self._device = self.parameters[0].tensor.device
        self._is_short = self.parameters[0].tensor.dtype.itemsize == 2
        order = {id(each): number for number, each in enumerate(model.parameters())}
        self._in_order = sorted(self.parameters, key=lambda each: order[id(each.tensor)])  # the model's
        self._trained = [each.tensor.requires_grad for each in self.parameters]
        self.over = False  # the training is over, and each worker has all parameters
        self._is_whole = False  # each worker has all parameters until the next step begins
        self.leads: Callable[[], bool] = lambda: True  # whether this worker writes the job's files
        self._workers: list[str] = []
        self._rank = 0
        self._begins = True  # the generation's first step has not begun
        self._division: Division | None = None
        self._sole: str | None = None  # without a division: the worker with the whole state
        self._pieces = self._taken_from_optimizers()  # of the optimizers' state, by the parameters' positions
        self._step = NO_STATE  # the applied step of which this worker has its rows
        self._stand_ins: dict[int, torch.Tensor] | None = None  # whole parameters, by position; None: there are none
        self._others: list[Piece] = []  # other workers' rows, where this worker wants the whole state
        self._versions: list[Any] | None = None  # of the parameters, behind the last update; None: not known
        self._rounds: Rounds | None = None
        self.shadows: list[
            torch.nn.Parameter
        ] = []  # this worker's rows of the trained parameters, with their gradients

    def rounds(
        self,
        virtual_workers: int,
        weight: Callable[[int], float],
        has_samples: Callable[[int], bool],
        lost: Callable[[str], NoReturn],
    ) -> Rounds:
        """Return the loop bodies' side, made once. Arguments as in `Rounds`."""
        self._rounds = Rounds(self.layers, self.reset, virtual_workers, weight, has_samples, lost)
        return self._rounds

    def reset(self) -> None:
        """End FSDP's work for a loop body."""
        reset(self._states)

    def _check_call(self) -> None:
        """Raise UserError if the script calls the model where it is divided and workers may do different things."""
        if self._division is not None and not (self.over or self._is_whole or self._is_in_step):
            raise UserError(
                "the model was called in the loop over run.epochs(), where neither a loop body runs nor all of its batches "
                "are read: under fully_shard each worker has a part of it there. Call it in the body, or between two epochs"
            )

    @property
    def _is_in_step(self) -> bool:
        return self._rounds is not None and self._rounds.in_step

    # -- the state's header and tensors

    def stands_for(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what a state has for a tensor of the model: a parameter without elements, unless the state is whole."""
        known = self._by_tensor.get(id(tensor))
        if known is None:
            return tensor.detach()
        if self.over:
            return known.local.view(known.shape)
        if self._stand_ins is not None:
            return self._stand_ins[known.position]
        return known.local.new_empty(0)

    def expect(self, whole: bool) -> None:
        """Prepare for a state that comes. whole: it has all parameters."""
        if not whole:
            self._stand_ins = None
        elif self._stand_ins is None and not self.over:
            self._stand_ins = {
                each.position: torch.empty(each.shape, dtype=each.tensor.dtype) for each in self.parameters
            }

    def plain(self) -> dict[str, Any]:
        """Return the division of the present state as plain values, equal on all workers."""
        if self.over:
            return {"over": True}
        if self._division is not None:
            return self._division.plain()
        return {"sole": self._sole or (self._workers[self._rank] if self._workers else None)}

    # -- generations, and states of others

    def enter(self, workers: Sequence[str], rank: int, joiners: Collection[int]) -> None:
        """Begin a generation of these workers. joiners: ranks without the newest state. Raises StateLost."""
        self._workers, self._rank, self._begins = list(workers), rank, True
        if self.over:
            return
        if self._division is None and self._sole is None:
            if rank not in joiners:
                self._sole = self._workers[rank]
            return
        owners = {each.owner for each in self._division.owners} if self._division is not None else {self._sole or ""}
        gone = owners - {worker for position, worker in enumerate(workers) if position not in joiners}
        if gone:
            raise StateLost(
                f"the rows of parameters under fully_shard that {', '.join(sorted(gone))} had are lost: the job goes "
                "on from its last checkpoint"
            )

    def header_came(self, values: Mapping[str, Any], applied: int) -> None:
        """Take note of the division of the state after the step `applied`, which this worker receives."""
        self._step = NO_STATE
        self._division, self._sole = None, None
        if values.get("over"):
            self.over = True
        elif "owners" in values:
            self._division = Division.of_plain(values)
        else:
            self._sole = values["sole"]

    def take_whole(self, applied: int) -> None:
        """Take the whole state from the stand-ins and the optimizers, into which it was loaded: that after the step
        `applied`.
        """
        assert self._stand_ins is not None
        found, self._stand_ins = self._stand_ins, None
        for layer in self.layers:
            layer.place(
                alone(self._device),
                [found[each.position].reshape(-1).to(each.local) for each in layer.parameters],
            )
        self._division, self._sole = None, self._workers[self._rank]
        self._pieces, self._step = self._taken_from_optimizers(), applied
        self._versions = None

    # -- a step

    def begin_step(self, communicator: Communicator, applied: int) -> None:
        """Before a step's loop bodies: check that the same parameters are trained, and divide anew if the workers have
        changed.

        applied: the last applied step. A collective in a generation's first step. Raises CommunicatorBroken, with
        nothing changed; StateLost, on all workers; UserError.
        """
        check_hooks(self.optimizers, "fully_shard")
        self._check_known()
        self._check_no_hooks()
        if [each.tensor.requires_grad for each in self.parameters] != self._trained:
            raise UserError(
                "fully_shard divides the parameters that prepare() has found trained, and this step trains others: "
                "leave it out for a model of which parts are frozen or added while it trains"
            )
        if self._versions is not None and self._versions != self._present_versions():
            raise UserError(
                "the script has changed a parameter between two steps, and under fully_shard each worker has a part of "
                "it: change the model before prepare(), or leave fully_shard out"
            )
        if not self._begins:
            if self._is_whole and self._division is not None:
                self._hold(self._division, self._with_values(), self._mesh_info(len(self._workers), self._rank))
            return
        if self._rounds is not None and self._division is not None:
            self._rounds.meet("the first step with other workers")
        mine = self._division is not None or self._sole == self._workers[self._rank]
        having = self._step if self._division is not None else applied if mine else NO_STATE
        payloads = exchange(communicator, {"step": having, "division": self.plain()})
        present = {worker for worker, each in zip(self._workers, payloads, strict=True) if each["step"] == applied}
        if any(each["division"] != payloads[0]["division"] for each in payloads):
            raise StateLost("the workers do not agree on who has which rows of the parameters under fully_shard")
        self._divide(communicator, self._workers, self._workers, present if self._division is not None else None)
        self._step, self._begins = applied, False

    def _check_known(self) -> None:
        """Raise UserError if an optimizer has a parameter that is not divided."""
        groups = [group["params"] for each in self.optimizers for group in each.param_groups]
        if any(id(parameter) not in self._by_tensor for parameters in groups for parameter in parameters):
            raise UserError(
                "an optimizer has a parameter that is not under fully_shard: make it of model.parameters(), behind the "
                "calls of fully_shard"
            )

    def _check_no_hooks(self) -> None:
        """Raise UserError if the script has registered a function for a parameter's gradient."""
        if any(each.has_hooks for each in self.parameters):
            raise UserError(
                "the script has registered a function for the gradient of a parameter (register_hook or "
                "register_post_accumulate_grad_hook), and under fully_shard no worker has the gradient of a loop body "
                "there: leave the function out"
            )

    def hand_over(self, communicator: Communicator, stay: Sequence[str] | None) -> None:
        """Behind the last update of a generation: send the rows of workers that leave to those that stay.

        stay: workers of the next generation; None: this worker does not know them. A collective. Raises StateLost.
        """
        try:
            payloads = exchange(communicator, {"stay": None if stay is None else list(stay)})
            known = next((each["stay"] for each in payloads if each["stay"] is not None), None)
            if known is None:
                raise StateLost("the workers of the next generation are not known")
            staying = [worker for worker in self._workers if worker in known]
            if staying == self._workers:
                return
            if not staying:
                raise StateLost("no worker stays that could take over the rows of the parameters under fully_shard")
            self._divide(communicator, self._workers, staying, set(self._workers))
        except CommunicatorBroken as error:
            raise StateLost(f"rows of parameters under fully_shard were lost on their way ({error})") from None

    def _divide(
        self, communicator: Communicator, members: Sequence[str], owners: Sequence[str], present: set[str] | None
    ) -> None:
        """Divide the state among `owners`, some of `members`. present: those that have it; None: one has it whole."""
        me = members[self._rank]
        if present is None:
            assert self._sole is not None
            before, present = self._division_of([self._sole]), {self._sole}
        else:
            assert self._division is not None
            before = self._division
        target = self._division_of(owners)
        own = self._with_values() if me in present else []
        outgoing = [
            (members.index(move.target), cut(own[move.interval.flat], move.interval))
            for move in moves(before, present, target)
            if move.source == me
        ]
        received = trade(communicator, outgoing, [self._device] * len(self.parameters))
        size = len(owners)
        rank = owners.index(me) if me in owners else None
        pieces: list[Piece] = []
        for each in self.parameters:
            span = each.rows(rank, size) if rank is not None else Interval(each.position, 0, 0)
            pieces.append(_compact(self._composed(each, span, [own[each.position]] if own else [], received)))
        communicator.wait(communicator.all_reduce_max(torch.zeros(1, dtype=torch.int64)))  # all have everything
        self._hold(target, pieces, self._mesh_info(size, rank) if rank is not None else None)

    def _mesh_info(self, size: int, rank: int) -> Any:
        gather = self._rounds.gather_tensor if self._rounds is not None else None
        return info(self._device.type, rank, size, gather)

    def _composed(self, parameter: Parameter, span: Interval, own: Sequence[Piece], received: Sequence[Piece]) -> Piece:
        if not span.size:
            return Piece(span, {VALUES: parameter.local.new_empty(0)})
        mine = [cut(each, part) for each in own if (part := common(each.interval, span)) is not None]
        others = [each for each in received if each.interval.flat == parameter.position]
        for each in mine:  # rows that were handed over since others' rows have come are among both
            others = [rest for other in others for rest in _outside(other, each.interval)]
        return compose(span, [*mine, *others])

    def _hold(self, division: Division, pieces: list[Piece], mesh_info: Any) -> None:
        """Go on with these rows. mesh_info: None: this worker leaves."""
        self._division, self._sole, self._is_whole = division, None, False
        values = [each.state.pop(VALUES) for each in pieces]
        self._pieces = pieces
        self.reset()
        if mesh_info is not None:
            for layer in self.layers:
                layer.place(mesh_info, [values[each.position] for each in layer.parameters])
        self._versions = self._present_versions() if mesh_info is not None else None
        self._cast_shadows()

    def _present_versions(self) -> list[Any]:
        return [each.version for each in self.parameters]

    def _cast_shadows(self) -> None:
        self.shadows = [
            torch.nn.Parameter(each.local, requires_grad=False) for each in self.parameters if each.tensor.requires_grad
        ]

    def _division_of(self, owners: Sequence[str]) -> Division:
        found = [
            Owned(interval, owner)
            for each in self.parameters
            for rank, owner in enumerate(owners)
            if (interval := each.rows(rank, len(owners))).size
        ]
        return Division(tuple(found), {})

    def _with_values(self) -> list[Piece]:
        """Return this worker's rows and their optimizer state, by the parameters' positions."""
        return [
            Piece(piece.interval, {**piece.state, VALUES: self._rows_of(each, piece)})
            for each, piece in zip(self.parameters, self._pieces, strict=True)
        ]

    def _rows_of(self, parameter: Parameter, piece: Piece) -> torch.Tensor:
        if self.over or self._is_whole:
            return parameter.local[piece.interval.begin : piece.interval.end]
        return parameter.local

    def _taken_from_optimizers(self) -> list[Piece]:
        """Return the optimizers' whole state, which is taken out of them."""
        states: dict[int, Mapping[str, Any]] = {
            id(parameter): state for each in self.optimizers for parameter, state in each.state.items()
        }
        for optimizer in self.optimizers:
            optimizer.state.clear()
        return [
            of_whole(each.local.view(each.shape), each.span, _plain_tensors(states.get(id(each.tensor), {})))
            for each in self.parameters
        ]

    # -- the update

    def take_gradient(self, gradients: Sequence[torch.Tensor]) -> None:
        """Take this worker's rows of the step's gradient, for each trained parameter."""
        for shadow, gradient in zip(self.shadows, gradients, strict=True):
            shadow.grad = gradient

    def norm(self, communicator: Communicator) -> torch.Tensor:
        """Return the 2-norm of the step's gradient, with the bits of a worker that has all of it.

        A collective. Raises CommunicatorBroken.
        """
        size, own = communicator.size, self._pieces
        rows = (each for each in self.parameters if each.tensor.requires_grad)
        gradients = {each.position: shadow.grad for each, shadow in zip(rows, self.shadows, strict=True)}
        trained = [each for each in self._in_order if each.tensor.requires_grad]
        pieces = [Piece(own[each.position].interval, {VALUES: gradients[each.position]}) for each in trained]
        outgoing = [
            (number % size, piece)
            for number, piece in enumerate(pieces)
            if piece.interval.size and number % size != communicator.rank
        ]
        received = trade(communicator, outgoing, [self._device] * len(self.parameters)) if size > 1 else []
        norms: list[list[Any]] = []
        for number, (each, piece) in enumerate(zip(trained, pieces, strict=True)):
            if number % size == communicator.rank:
                whole = self._composed(each, each.span, [piece] if piece.interval.size else [], received)
                (norm,) = torch._foreach_norm([whole.state[VALUES].view(each.shape)])
                norms.append([number, float(norm)])
        told = exchange(communicator, {"norms": norms})
        by_number = {number: norm for each in told for number, norm in each["norms"]}
        every = [
            torch.tensor(by_number[number], dtype=each.tensor.dtype, device=self._device)
            for number, each in enumerate(trained)
        ]
        found: torch.Tensor = torch.linalg.vector_norm(torch.stack(every))
        return found

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        """Update this worker's rows of one optimizer's parameters, in place of its `step`."""
        number, pieces = self.optimizers.index(optimizer), self._pieces
        groups = {
            id(parameter): group
            for group, options in enumerate(optimizer.param_groups)
            for parameter in options["params"]
        }
        trained = (each for each in self.parameters if each.tensor.requires_grad)
        work = [
            Work(number, groups[id(each.tensor)], pieces[each.position], shadow.detach(), shadow.grad)
            for each, shadow in zip(trained, self.shadows, strict=True)
            if id(each.tensor) in groups and shadow.numel() and shadow.grad is not None
        ]
        apply = update_padded if self._is_short else update
        apply(optimizer, optimizer.param_groups, work)

    def committed(self, step: int) -> None:
        """End a step, whose update has been made."""
        self._step, self._others, self.whole_at = step, [], None
        self._versions = self._present_versions()
        for each in self.shadows:
            each.grad = None

    def given_up(self) -> None:
        """Forget the step in progress."""
        self.wish = Whole.NOT
        self.reset()
        for each in self.shadows:
            each.grad = None

    # -- the whole state

    def assemble(self, communicator: Communicator, finished: bool, leads: bool) -> Whole:
        """Send this worker's rows to the workers that want the whole state; if the job is over, the parameters to all.

        As `DividedState.assemble`.
        """
        wanted = (finished and leads) or self.wish is not Whole.NOT
        self.wish = Whole.NOT
        if communicator.size == 1:
            self.whole_at, self.over = self._step, finished
            return Whole.TO_END
        greatest = Whole.TO_END if finished else self.greatest_wish
        if greatest is Whole.NOT:
            return greatest
        try:
            payloads = exchange(communicator, {"wants": wanted})
            self._send_rows(communicator, [each["wants"] for each in payloads], finished)
        except CommunicatorBroken:  # the next step raises it again
            return Whole.NOT
        self.over = finished
        if wanted:
            self.whole_at = self._step
        return greatest

    def to_save(self, value: Any) -> Any:
        """Return a value with plain tensors in place of the parameters; on other workers than the leader, with empty ones.

        A collective in a loop body. Raises UserError for parts of parameters that no worker can complete any more.
        """
        return without_parts(value, self.leads())

    def step_ends(self, communicator: Communicator, finished: bool, decided: bool, stay: Any, looks: bool) -> None:
        """End a step when the script asks for the next batch: let workers leave, and let all have the whole model if the
        script's code comes.

        decided: another generation follows. stay: as in `hand_over`. looks: code between two steps comes. A collective.
        Raises StateLost; UserError if workers do not come here together.
        """
        assert self._rounds is not None
        self._rounds.step_ends()
        if self.over or finished:
            return
        if decided or looks:
            self._rounds.meet("the end of the step")
        if decided:
            self.hand_over(communicator, stay)
        if looks and communicator.size == 1:
            self._is_whole = True
        elif looks:
            try:
                self._send_rows(communicator, [False] * communicator.size, True)
            except CommunicatorBroken as error:
                raise StateLost(f"parameters under fully_shard could not be gathered behind a step ({error})") from None

    def gather(self, communicator: Communicator) -> None:
        """Let every worker have all parameters, when the training is over. A collective. Raises CommunicatorBroken."""
        if communicator.size > 1 and not (self.over or self._is_whole):
            if self._rounds is not None and self._rounds.in_step:
                self._rounds.step_ends()
                self._rounds.meet("the end of the training")
            self._send_rows(communicator, [False] * communicator.size, True)
        self.over = True

    def _send_rows(self, communicator: Communicator, wants: Sequence[bool], over: bool) -> None:
        """Send all rows to the ranks that want them.

        over: the parameters' alone to the others, which then have all of them.
        """
        owners = {self._sole} if self._division is None else {each.owner for each in self._division.owners}
        has_rows = self._workers[self._rank] in owners  # a joiner may have none yet, and who leaves has none any more
        own = self._with_values() if has_rows else []
        outgoing = [
            (rank, piece if wants[rank] else _values_of(piece))
            for rank in range(communicator.size)
            if rank != communicator.rank and (wants[rank] or over)
            for piece in own
            if piece.interval.size
        ]
        received = trade(communicator, outgoing, [self._device] * len(self.parameters), host=True)
        if wants[communicator.rank]:
            self._others = received
        if not over:
            return
        communicator.wait(communicator.all_reduce_max(torch.zeros(1, dtype=torch.int64)))  # all have everything
        self.reset()
        others = [_values_of(each) for each in received]
        for layer in self.layers:
            whole = [
                self._composed(each, each.span, [_values_of(own[each.position])] if own else [], others)
                for each in layer.parameters
            ]
            layer.place(alone(self._device), [each.state[VALUES].to(self._device) for each in whole])
        self._is_whole = True
        self._versions = self._present_versions()
        self._cast_shadows()

    @contextmanager
    def whole(self) -> Iterator[frozenset[int]]:
        """Give the optimizers and the state's tensors, within the context, the whole state of the last applied step.

        Yields addresses of tensors that are in the host's memory and belong to an accelerator. Raises UserError if the
        whole state is not on this worker.
        """
        if self.whole_at is None or self.whole_at != self._step:
            raise UserError(f"the state of step {self._step}, divided by fully_shard, is not on this worker")
        optimizer_of = {
            id(parameter): each
            for each in self.optimizers
            for group in each.param_groups
            for parameter in group["params"]
        }
        stand_ins: dict[int, torch.Tensor] = {}
        try:
            for each, piece in zip(self.parameters, self._pieces, strict=True):
                interval = piece.interval
                rows = Piece(interval, {**piece.state, VALUES: self._rows_of(each, piece)})
                own = [on_host(rows)] if interval.size else []
                whole = self._composed(each, each.span, own, self._others)
                stand_ins[each.position] = whole.state.pop(VALUES).view(each.shape)
                state = to_whole(stand_ins[each.position], whole)
                if state and id(each.tensor) in optimizer_of:
                    optimizer_of[id(each.tensor)].state[each.tensor] = state
            self._stand_ins = stand_ins
            yield frozenset()
        finally:
            self._stand_ins = None
            for optimizer in self.optimizers:
                optimizer.state.clear()


def _plain_tensors(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state of a whole parameter with plain tensors."""
    return {key: value._local_tensor if isinstance(value, DTensor) else value for key, value in state.items()}


def _compact(piece: Piece) -> Piece:
    """Return a piece whose tensors keep no memory but their own."""
    state = {
        key: value.clone()
        if isinstance(value, torch.Tensor) and value.untyped_storage().nbytes() > value.nbytes and key != VALUES
        else value
        for key, value in piece.state.items()
    }
    return Piece(piece.interval, state)


def _outside(piece: Piece, interval: Interval) -> list[Piece]:
    """Return the parts of a piece before and behind an interval of the same parameter."""
    whole = piece.interval
    before = Interval(whole.flat, whole.begin, min(whole.end, interval.begin))
    behind = Interval(whole.flat, max(whole.begin, interval.end), whole.end)
    return [cut(piece, each) for each in (before, behind) if each.size > 0]


def _values_of(piece: Piece) -> Piece:
    return Piece(piece.interval, {VALUES: piece.state[VALUES]})
