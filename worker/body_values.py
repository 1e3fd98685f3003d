"""Values that loop bodies may change, beside the gradient, from the beginning of a step to its update.

They are the optimizers' options, calls of schedulers and averaged models, modules' buffers and extra state, and registered
values. Each has rules of its own (in its module). Here are the moments of a step at which these rules act. Parameters and
copies of the model, which bodies may not change, are compared at the same moments.

Most scripts have neither buffers nor extra state nor registered values. None is added while batches are read, so whether there
are any is asked once for each pass over batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from .comparison.mutation_guard import MutationGuard
from .following import Following
from .gradients.buffers import ModelBuffers
from .gradients.hyperparameters import Hyperparameters
from .state.training_state import TrainingState


class BodyValues:
    """The values of one script that its loop bodies may change. For the training thread."""

    def __init__(
        self, parts: TrainingState, hyperparameters: Hyperparameters, following: Following, guard: MutationGuard
    ) -> None:
        self.buffers = ModelBuffers(parts.modules)
        self._extra_state = parts.extra_state
        self._registered = parts.registered
        self._hyperparameters = hyperparameters
        self._following = following
        self._guard = guard
        self._rare = True  # whether there are buffers, extra state, or registered values

    def look_again(self) -> None:
        """Find buffers, extra state and registered tensors anew at an epoch's beginning: the script may have changed them."""
        self.buffers.find()
        self._extra_state.find()
        self._registered.watch()
        self._guard.look_again()
        self._rare = bool(self.buffers) or bool(self._extra_state) or bool(self._registered)

    # -- a step

    def begin(self, step: int, sends: bool, shown: bool = False) -> None:
        """Begin a step. sends: joining workers get the present values in this step. shown: the step has been applied."""
        self._hyperparameters.begin(step)
        self._following.begin()
        if not shown:
            self._registered.of_epoch.step_begins()
        if self._rare:
            self.buffers.begin()
            self._extra_state.begin()
            self._registered.remember()
            if not shown:
                self._registered.step_begins(sends)
            self._registered.state.begin(step, sends)
            self._registered.virtual.begin()

    def some_look_away(self) -> None:
        """Note that some workers run no body in the step."""
        self._hyperparameters.some_look_away = self._registered.state.some_look_away = True

    def begin_body(self, step: int, virtual_worker: int) -> None:
        """Begin the body of a virtual worker with the values of the step's beginning."""
        self._hyperparameters.begin_body()
        self._following.begin_body()
        if self._rare:
            self.buffers.begin_micro_batch()
            self._extra_state.restore()
            self._registered.state.begin_body()
            self._registered.virtual.begin_body(virtual_worker)
        self._guard.begin_body(step)

    def keep(self, virtual_worker: int | None, refuses: str) -> None:
        """Keep the values that a body leaves at its `optimizer.step()`. None: they have no effect.

        refuses: why bodies may not change extra state; "": they may. Raises UserError for changes that bodies may not make, and
        for values that differ from those of the step's other bodies."""
        self._guard.check()
        self._hyperparameters.keep()
        self.buffers.check()
        if self._rare:
            self._registered.state.keep(first=virtual_worker == 0)
            self._registered.virtual.keep(virtual_worker)
            if virtual_worker == 0:
                self.buffers.keep()
                self._extra_state.keep()
                if refuses:
                    self._extra_state.refuse_changes(refuses)

    def end_body(self, step: int) -> None:
        """End a body when the script asks for its next batch. Raises UserError if bodies of one step did different things."""
        self._guard.check()
        self._hyperparameters.end_body(self._following.steps_scheduler)
        if self._rare:
            self._registered.state.end_body()
        self._following.end_body(step)

    def forget_body(self) -> None:
        """Undo the changes of a body that has run in a pass before the step's own."""
        self._guard.check()
        self.restore()
        self._following.begin()

    def restore(self) -> None:
        """Restore the values with which the step began."""
        self.buffers.restore()
        self._hyperparameters.restore()
        self._extra_state.restore()
        self._registered.state.restore()

    @contextmanager
    def as_begun(self) -> Iterator[None]:
        """Give buffers and attributes of `run.state`, within the context, the values with which the step began."""
        with ExitStack() as stack:
            stack.enter_context(self.buffers.as_begun())
            stack.enter_context(self._registered.state.as_begun())
            yield

    # -- the update

    def apply(self, joins: bool) -> None:
        """Set the step's values, just before the update, after which a script may change them. joins: as in `inband.Part`."""
        if self._rare:
            self.buffers.apply()
            self._extra_state.apply()
            self._registered.state.apply(joins)
            self._registered.virtual.apply()
        self._hyperparameters.apply()

    def updated(self) -> None:
        """Take the values after the update. Raises UserError if the update has changed a copy of the model."""
        self._hyperparameters.updated()
        self._guard.updated()
        if self._rare:
            self._registered.updated()
            self._registered.state.updated()
