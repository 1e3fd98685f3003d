"""One script's own values from its loop's beginning on: which names were bound there, and the values then and now
(`reachable`).

A worker creates a `Looking` where its loop begins (`begin`, at `run.epochs()`), and takes a look where its first pass
over the batches begins (`first_batches`), before any loop body has run. From then on `now` returns the values to be
compared with another worker's, at the same boundary between two steps, after registered values have arrived. All calls
are for the thread that runs the script.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import textwrap
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType
from typing import Any

from torch import nn

from ...protocol.errors import PeerError
from ..kept import CACHE, Difference, Kind, Node, Reach, differences, root_of, variable_of
from ..source import collecting
from ..source.assigned import LONGEST, Source, Sources
from ..source.dataflow import Key
from ..source.own_code import (
    consumers,
    directories,
    is_own_file,
    loop_frame,
    module_of,
    variables_in,
    variables_of_loop,
)
from ..source.save_calls import is_part, names_place
from ..source.syntax import called_name, walk
from ..source.unused import Uses
from ..state.training_state import TrainingState
from ..value_kinds import leave_out, names_within
from . import advice
from .frames import find, names_bound, names_of
from .reachable import Limits, look

ENVIRONMENT = "os.environ"
SHARE_OF_EPOCH = (
    20  # time between two looks in each epoch's second step, in times of one look: many values begin to change there
)
DRAWS = frozenset(
    """
    rand randn rand_like randn_like randint randperm random uniform normal choice choices shuffle permutation sample bernoulli
    multinomial standard_normal gauss integers
    """.split()  # noqa: SIM905
)
_DRAWING = frozenset({"__init__", "__iter__", "set_epoch"})  # methods of a sampler


def _nothing_is_local(name: str) -> bool:
    return False


@dataclass
class Looking:
    """Looks at the values of one script.

    state: the job's state, which is left out. is_local: whether a name may differ (`local_names`). beside: objects, by
    name, to which the script may have no variable: `{"dataset": dataset}`. known: ids of further objects to leave out
    (`value_kinds.leave_out`), such as the run and its batches.
    """

    state: TrainingState
    is_local: Callable[[str], bool] = _nothing_is_local
    beside: Mapping[str, Any] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    batch_size: int | None = None  # of one virtual worker
    samplers: frozenset[str] = frozenset()  # classes of the samplers that give the order of an epoch
    reads_ahead: bool = False  # whether processes with copies of the dataset read
    limits: Limits = field(default_factory=Limits)
    _code: CodeType | None = None  # of the function or module that contains the loop
    _sources: Sources = field(default_factory=lambda: Sources(None))
    _environment: tuple[str, ...] = ()  # variables of the environment that the script mentions
    _yielding: frozenset[str] = frozenset()  # variables of the script's generators between the loop and the batches
    _foreign: tuple[str, ...] = ()  # attributes that the script gives to modules and classes of others
    _bound: frozenset[str] = frozenset()
    _before: Reach | None = None  # the script's values before the loop over epochs
    _begun: Reach | None = None  # the same, and the first values of what only code at an epoch's beginning binds
    passes: int = 0  # over the batches, begun so far
    temporaries: frozenset[str] = frozenset()  # variables that the loop binds in each epoch before it reads them
    # Variables that code at an epoch's beginning computes in each epoch, as they were in the first pass
    made_at_epochs: Mapping[str, Node] = field(default_factory=dict)
    _derived: frozenset[str] = frozenset()  # those of them that are not plain
    # Variables that code between epochs changes by the source, perhaps to an equal value in the first epoch
    set_at_epochs: Sequence[Difference] = ()
    _epoch: Reach | None = None  # the values of `_derived` when the present pass began
    _slice: Uses | None = None  # of the gradient; made when first used
    # Of the headers of the loops over batches: file and line
    _places: set[tuple[str, int]] = field(default_factory=set)
    # Variables that refer to objects of the job: other values in these objects are not saved
    _carried: frozenset[str] = frozenset()

    def begin(self, frame: FrameType | None) -> None:
        """Begin the loop over epochs. frame: of its call or inside it."""
        frame = loop_frame(frame)
        self._code = None if frame is None else frame.f_code
        self._sources, self._slice = Sources.of(frame), None
        self._environment = tuple(self._sources.mentioned(os.environ))
        self._foreign = tuple(self._sources.given_to_others())
        self._bound = names_bound(frame)
        self.temporaries = self._sources.temporaries()
        self._before = self._look(frame, self._bound - self.temporaries)

    def first_batches(self, frame: FrameType | None) -> None:
        """Begin a pass over the batches.

        Before the first pass no loop body has run: the script's values of that time are kept.
        """
        within = self.frames(frame)
        if within:
            self._places.add((within[-1][1].f_code.co_filename, within[-1][1].f_lineno or 0))
        if self._begun is None:
            self._yielding = frozenset(self._of_generators(frame))
        inner, frame = frame, self.frame(frame)
        self.passes += 1
        if self._begun is None:
            before, self._bound = self._bound, (self._bound | names_bound(frame)) - self.temporaries
            self._bound |= self._sources.sometimes
            first = self._look(inner, self._bound)
            changed = {} if self._before is None else self._before.names  # by code at the first epoch's beginning
            self._begun = replace(first, names={name: changed.get(name, node) for name, node in first.names.items()})
            self._carried = names_of(frame, carried(self.state) | self.known)
            self.made_at_epochs = {
                name: node
                for name, node in first.names.items()
                if name not in self.beside  # made before the loop, although no variable refers to it
                and "." not in name
                and (name not in before or self._sources.at_epochs(name) is not None)
            }
            derived = {name for name, node in self.made_at_epochs.items() if node.kind is not Kind.PLAIN}
            self._derived = frozenset(derived)
            self.set_at_epochs = [
                each
                for each in first.every()
                if each.name == variable_of(each.name)
                and self._sources.is_changed_between_epochs(each.name, each.owners)
            ]
        self.look_at_derived(frame)

    def collected(self, frame: FrameType | None) -> tuple[str, str] | None:
        """Return the statement that collects a value from the present pass over the batches, and its line (`collecting`).

        frame: within the call that begins the pass.
        """
        if (inner := loop_frame(frame)) is None:
            return None
        outer = [inner, *consumers(inner)][-1]
        source = Source.read(outer.f_code.co_filename)
        sliced = self._sliced() if source is not None and source == self._sources.first else None
        is_display = (lambda name: False) if sliced is None else sliced.is_display
        found = None if source is None else collecting.statement_at(source.tree, outer.f_lineno or 0, is_display)
        if source is None or found is None:
            return None
        place = self._sources.line_in(source.tree, found.lineno)
        return textwrap.shorten(ast.unparse(found), LONGEST, placeholder=" …"), str(place)

    def left_behind(
        self, frame: FrameType | None, compared: Reach, in_pass: bool, carried: Collection[str]
    ) -> dict[str, str]:
        """Return the variables without a value to compare that a process which goes on from a checkpoint does not have, and on
        which, by the source, the gradient depends, each with the line: positions of progress bars, numbers of epochs, and, with
        in_pass, what earlier bodies of the present pass over the batches have left (`Slice.left_in_pass`).

        frame: as for `collected`. compared: a look with the values that are compared one by one. carried: as in
        `Slice.left_in_pass`.
        """
        if (inner := loop_frame(frame)) is None or (sliced := self._sliced()) is None:
            return {}
        source = Source.read(inner.f_code.co_filename)
        found = [*sliced.positions_of_bars(), *sliced.counted_epochs()]
        if source is not None and in_pass:
            objects = self.state.registered.objects()
            carried = {*carried, *self._carried, *(name for each in objects for name in names_within(each))}
            package, own = __name__.partition(".")[0], variables_of_loop(inner)
            batches = [name for name, value in own.items() if module_of(type(value)).partition(".")[0] == package]
            for line in (line for file, line in self._places if file == inner.f_code.co_filename):
                found += sliced.left_in_pass((source.tree, line), carried, batches)
        kinds = {node.type for root in compared.names.values() for node in root.every() if not node.is_class}
        looked_at = compared.names.keys() - self.temporaries
        return {
            key.name: str(self._sources.line_in(module, line))
            for key, module, line in found
            if (key.owner not in kinds if isinstance(key.owner, str) else not self._is_kept_by(key, looked_at))
            and not self.is_local(key.name)
            and (key.name in sliced.names or not self._sources.is_time(key.last_name))
        }

    def _is_kept_by(self, key: Key, names: Collection[str]) -> bool:
        """Return whether the variable is one of these names of the loop's function or module."""
        return key.name in names and key.owner in (self._sources.loop_scope, *self._sources.trees)

    def look_at_derived(self, frame: FrameType | None) -> None:
        """Look at the values of `derived`, before a loop body of the pass has run. frame: within the loop."""
        if self._derived:
            self._epoch = self._look(self.frame(frame), self._derived, beside={})

    @property
    def derived(self) -> Reach | None:
        """Values that code at the present epoch's beginning has made, such as teachers and pseudo-labels, but not
        numbers.

        They are as before the epoch's first loop body. None: there is no such code.
        """
        return self._epoch

    def now(self, frame: FrameType | None) -> Reach:
        """Return the values that the script keeps now, without names that may differ. frame: within the loop."""
        seen = self._look(frame, self._bound)
        return seen.since(self._begun if self._begun is not None else seen)

    def plain(self, frame: FrameType | None) -> list[Any]:
        """Return `now` and `derived` for MessagePack. frame: as for `now`."""
        return [self.now(frame).plain(), self._epoch.plain() if self._epoch is not None else None]

    @staticmethod
    def of_plain(plain: Any) -> tuple[Reach, Reach | None]:
        """Return the looks of `plain` values. Raises PeerError for malformed ones."""
        try:
            now, derived = plain
        except (TypeError, ValueError) as error:
            raise PeerError(f"these are no looks at a script's values: {error}") from None
        return Reach.of(now), Reach.of(derived) if derived is not None else None

    def lost(self, theirs: Reach, mine: Reach) -> list[Difference]:
        """Return the names that a loop has changed on one side and that differ on the other side.

        A dataset with a method `set_epoch` may derive its own values there, and in a new process it has not received
        the epoch yet: such values do not count, unless a line of the loop changes them.
        """
        found = [each for each in differences(theirs, mine) if each.changed or self._caches_random(each)]
        found = [each for each in found if each.name != advice.MODE]
        return [each for each in found if not self._is_set_by_epoch(each)]

    def _caches_random(self, difference: Difference) -> bool:
        """Return whether the value is a cache of a function that draws random numbers: entries do not follow from arguments."""
        if difference.node.type != CACHE:
            return False
        name = difference.name.rpartition(".")[2]
        functions = [node for tree in self.trees for node in walk(tree) if getattr(node, "name", None) == name]
        return any(
            isinstance(call, ast.Call) and called_name(call) in DRAWS for each in functions for call in walk(each)
        )

    def _is_set_by_epoch(self, difference: Difference) -> bool:
        """Return whether the value belongs to a dataset that may derive it in `set_epoch`, and no line of the loop changes it."""
        told = any(callable(getattr(type(each), "set_epoch", None)) for each in self.beside.values())
        return told and _is_of_data(difference) and not self._is_changed_in_loop(difference)

    def undecided(self, lost: Sequence[Difference]) -> list[Difference]:
        """Return those of the names of `lost` that may have an effect, by the script's source."""
        return [each for each in lost if not self.is_for_logs(each)]

    def is_for_logs(self, difference: Difference) -> bool:
        """Return whether, by the script's source, the value is a time, or only a log reads it."""
        if any(self._sources.is_time(each.name) for each in difference.by_each_name):
            return True
        return (sliced := self._sliced()) is not None and sliced.is_without_effect(difference)

    def explain(self, theirs: Reach, mine: Reach, workers: tuple[str, str]) -> tuple[str, list[Difference]]:
        """Explain why the two workers differ, as far as it is known, and return the names that differ because a loop
        changed them.

        Without such names, those that differed from the beginning, or what bodies leave to later ones of the same pass.
        workers: names for people, theirs first.
        """
        found = differences(theirs, mine)
        found = [each for each in found if not self._is_set_by_epoch(each)]
        found = [each for each in found if each.changed] or [
            each for each in found if not each.name.startswith(ENVIRONMENT)
        ]
        opaque: Sequence[str] = tuple(dict.fromkeys((*mine.opaque, *theirs.opaque)))
        if not found and (left := self.left_behind(sys._getframe(), theirs, True, ())):
            return f"{advice.begin_anew(left)} where a process joins in the middle of an epoch", []
        values = (Kind.PLAIN, Kind.CONTAINER, Kind.TENSOR, Kind.ARRAY, Kind.OBJECT)
        kept = [name for name in sorted(self._yielding) if name in mine.names and mine.names[name].kind in values]
        if not found and kept:
            return advice.of_generators(kept, self._sources), []
        text = advice.explain(self.likely(found), workers, self._sources, opaque=opaque, batch_size=self.batch_size)
        return text, found

    def likely(self, found: Sequence[Difference]) -> list[Difference]:
        """Return the likely causes of a difference: not times, nor what only logs read, unless there is nothing else. The
        mode of the model's modules comes first.
        """
        causes = [each for each in found if not self._is_shown_only(each)] or list(found)
        return sorted(causes, key=lambda each: each.name != advice.MODE)

    def _is_shown_only(self, difference: Difference) -> bool:
        shown = all(root_of(each.name) in self._sources.shown for each in difference.by_each_name)
        times = any(self._sources.is_time(each.name) for each in difference.by_each_name)
        return times or (shown and self.is_for_logs(difference))

    def counter(self) -> str:
        """Return a sentence on a variable that counts this worker's loop bodies; "" if the loop has none."""
        return advice.of_counter(self._sources)

    def sentences(self, found: Sequence[Difference], workers: tuple[str, str]) -> str:
        """Return a sentence for each of the first names: its value on both workers, the line that changes it, and the
        line to write.
        """
        return advice.sentences(found, workers, self._sources, self.batch_size)

    def registered(self) -> Reach:
        """Return a look at the values of `run.register`, by their names there."""
        return look(None, (), limits=self.limits, beside=self.state.registered.given())

    def of_error(self, error: BaseException) -> str:
        """Explain why a joining worker's script has raised this error in code that other workers have run."""
        return advice.of_error(error, self._sources)

    def reason(self, error: NameError | AttributeError) -> str | None:
        """Explain why the name is unbound if the loop assigns it in some steps only, with the remedy; else None."""
        return advice.of_unbound(error, self._sources)

    def is_cache(self, difference: Difference) -> bool:
        """Return whether the dataset itself has changed this value, such as a cache, and no line of the loop has."""
        return any(map(_is_of_data, difference.by_each_name)) and not self._is_changed_in_loop(difference)

    def is_changed_data(self, difference: Difference) -> bool:
        """Return whether a line of the loop changes this value of the dataset, and samples depend on it."""
        own = [each for each in difference.by_each_name if root_of(each.name) in self.beside]
        return any(map(self._is_read_by_data, own)) and self._is_changed_in_loop(difference)

    def _is_read_by_data(self, difference: Difference) -> bool:
        """Return whether the value belongs to a dataset that reads it, as far as its class is the script's own."""
        if not difference.in_data:
            return difference.node.kind is Kind.DATA
        depth = difference.holders.index(Kind.DATA)
        attributes = re.sub(r"\[[^\]]*\]", "", difference.name).split(".")[1:]
        return depth >= len(attributes) or self._sources.reads(difference.owners[depth], attributes[depth])

    def _is_changed_in_loop(self, difference: Difference) -> bool:
        return any(self._sources.is_changed_in_loop(each.name, each.owners) for each in difference.by_each_name)

    def matters(self, difference: Difference) -> bool:
        """Return whether, by the script's source, what is trained or saved depends on this value, now or later."""
        tests = (self.is_saved, self.decides_order, self.carries, self.ends, self.is_changed_data)
        return any(test(difference) for test in tests)

    def depends(self, difference: Difference) -> bool:
        """Return whether, by the script's source, what is trained or saved depends on this value, in whatever way bodies and code
        between epochs make it. What a module or a dataset keeps counts only if bodies make it from its previous value.
        """
        sliced = self._sliced()
        if sliced is not None and (sliced.of_samples(difference) or sliced.of_hooks(difference)):
            return True
        if difference.in_data or difference.in_model or difference.in_module:
            return self.carries(difference)
        return self.is_saved(difference) or (sliced is not None and sliced.reads(difference))

    def may_act(self, difference: Difference) -> bool:
        """Return whether the source does not exclude that what is trained or saved depends on this value: on a number or a
        container outside of modules, nothing does that the source shows not to.
        """
        of_values = difference.node.kind in (Kind.PLAIN, Kind.CONTAINER, Kind.TENSOR, Kind.ARRAY, Kind.LIBRARY)
        unknown = (
            not {Kind.MODEL, Kind.MODULE, Kind.ITERATOR}.isdisjoint(difference.holders) or difference.node.type == CACHE
        )
        unknown |= "_hooks[" in difference.name
        unknown |= difference.name.endswith("._num_yielded")  # of a DataLoader's iterator
        of_sampler = any(not self.samplers.isdisjoint(each.owners) for each in difference.by_each_name)
        if not of_values or unknown or of_sampler or self._sliced() is None:
            return True
        return self.matters(difference) or self.depends(difference)

    def decides_order(self, difference: Difference) -> bool:
        """Return whether the value is a sampler's, so that the order of the next epoch may depend on it.

        What a sampler changes where an order is drawn does not count: the orders themselves are compared.
        """
        own = [each for each in difference.by_each_name if not self.samplers.isdisjoint(each.owners)]
        return difference.node.kind is not Kind.GENERATOR and any(
            self._sources.is_changed_outside(each.name, each.owners, _DRAWING) for each in own
        )

    def is_saved(self, difference: Difference) -> bool:
        """Return whether the value goes into a saved file, or decides when one is saved or the loop ends, by the
        script's source.
        """
        return any(map(self._is_saved, difference.by_each_name))

    def _is_saved(self, difference: Difference) -> bool:
        path = variable_of(difference.name)
        if difference.owners[-1:] in (
            ("Parameter",),
            ("Tensor",),
        ):  # an attribute, read by a variable with another name
            return any(each.rpartition(".")[2] == path.rpartition(".")[2] for each in self._sources.saved)
        saved: Collection[str] = self._sources.saved
        if self._is_beside_state(difference):  # a file of the module does not contain it
            saved = [each for each in saved if not path.startswith(f"{each}.")]
        return path.partition(".")[0] not in self._carried and is_part(path, saved)

    def _is_beside_state(self, difference: Difference) -> bool:
        """Return whether the value is an attribute of a module of a class of the job's, without being in its state_dict()."""
        name = re.split(r"[\[(]", difference.name.rpartition(".")[2], maxsplit=1)[0]
        kinds = difference.owners[-1:] if difference.in_module else ()
        modules = [each for _, root in self.state.modules for each in root.modules() if type(each).__name__ in kinds]
        return bool(modules) and not any(name in {**each._parameters, **each._buffers} for each in modules)

    def carries(self, difference: Difference) -> bool:
        """Return whether, by the script's source, the gradient depends on the value and bodies make it from its previous
        one: now, or in a later step.
        """
        return (sliced := self._sliced()) is not None and sliced.carries(difference)

    def ends(self, difference: Difference) -> bool:
        """Return whether, by the script's source, the value decides when the loop ends."""
        return (sliced := self._sliced()) is not None and sliced.ends(difference)

    def _sliced(self) -> Uses | None:
        scope = self._sources.loop_scope
        if self._slice is None and scope is not None:
            modules = list(self.state.model.named_modules())
            statistics = any(self._has_statistics(*each) for each in modules)
            self._slice = Uses(
                self._sources.trees, scope, statistics, any(self._has_modes(each) for _, each in modules)
            )
        return self._slice

    def _has_modes(self, module: nn.Module) -> bool:
        """Return whether the module computes other values in training mode."""
        if not type(module).__module__.startswith("torch."):
            return self._sources.reads(type(module).__name__, "training")
        rates = getattr(module, "p", 0), getattr(module, "dropout", 0)  # of dropout; in a Transformer it is a module
        return getattr(module, "running_mean", None) is not None or any(
            isinstance(each, float) and each for each in rates
        )

    def _has_statistics(self, name: str, module: nn.Module) -> bool:
        """Return whether a call of the module in training mode changes its buffers, as batch normalization does."""
        if type(module).__module__.startswith("torch."):
            return getattr(module, "running_mean", None) is not None
        owners = (type(module).__name__,)
        return any(
            self._sources.is_changed_outside(f"{name}.{each}", owners, {"__init__"})
            for each, _ in module.named_buffers(recurse=False)
        )

    def gradient_names(self) -> frozenset[str]:
        """Return the names of the variables and attributes on which, by the script's source, the gradient depends."""
        return frozenset() if (sliced := self._sliced()) is None else sliced.names

    @property
    def trees(self) -> tuple[ast.Module, ...]:
        """The syntax trees of the script's files (`Sources.trees`)."""
        return self._sources.trees

    def frame(self, frame: FrameType | None) -> FrameType | None:
        """Return the frame of the function or module that contains the loop. frame: within the loop."""
        return loop_frame(frame, self._code)

    def is_own(self, name: str, owners: Sequence[str] = ()) -> bool:
        """Return whether each worker has a value of its own under this name: a time, its place, or one of `run.local`."""
        of_place = names_place(name) or self._sources.is_of_place(name, owners)
        return of_place or self.is_local(name) or self._sources.is_time(name)

    def frames(self, frame: FrameType | None) -> list[tuple[str, FrameType]]:
        """Return the script's frames from the one of the loop over epochs inwards, each with a prefix for names of its variables,
        the same on all workers; "" for the first. frame: within the loop.
        """
        outer, own = self.frame(frame), directories()
        inner: list[FrameType] = []
        while frame is not outer and frame is not None:
            inner += [frame] if is_own_file(frame.f_code.co_filename, own) else []
            frame = frame.f_back
        numbered = enumerate(reversed(inner), 1)
        return (
            [] if outer is None else [("", outer), *((f"{n} {each.f_code.co_qualname} ", each) for n, each in numbered)]
        )

    def _of_generators(self, frame: FrameType | None) -> dict[str, Any]:
        """Return the variables of the script's generators between the loop and the batches, by function and variable."""
        inner = [each for _, each in self.frames(frame)[1:] if each.f_code.co_flags & inspect.CO_GENERATOR]
        return {f"{each.f_code.co_name}.{name}": value for each in inner for name, value in variables_in(each).items()}

    def changed(self, frame: FrameType | None) -> list[Difference]:
        """Return the values that the loop has changed since it began, without the modules' mode. frame: as for `now`."""
        return [] if self._begun is None else self.since_begin(self.now(frame))

    def since_begin(self, now: Reach) -> list[Difference]:
        """Return the values that differ in `now` from those of the loop's beginning, without the modules' mode."""
        found = [] if self._begun is None else differences(self._begun, now)
        return [each for each in found if each.name != advice.MODE]

    def bound_since(self, now: Reach) -> list[str]:
        """Return the variables that bodies have bound for the first time since the loop's beginning (`Sources.sometimes`)."""
        begun = {} if self._begun is None else self._begun.names
        return [name for name in now.names if name in self._sources.sometimes and name not in begun]

    def carried_in_place(self, difference: Difference, alone: bool = False) -> bool | None:
        """Return whether the variable of a value that changed between two passes is changed in place, rather than bound
        anew. None: its value is not to be carried, since it is each worker's own, the dataset's or a sampler's, or follows by
        the source from what each worker's bodies have computed. alone: one worker has run all bodies, so that does not count.
        """
        every = [(variable_of(each.name), each.owners) for each in difference.by_each_name]
        names = [(name, owners[: name.count(".")]) for name, owners in every]
        if any(map(_is_of_data, difference.by_each_name)) or all(root_of(name) in self.beside for name, _ in names):
            return None
        if any(self.is_own(name, owners) for name, owners in names):
            return None
        if any(not self.samplers.isdisjoint(owners) for _, owners in every):
            return None
        if (sliced := self._sliced()) is not None and sliced.of_samples(difference, changed=True):
            return None
        if alone:
            return not any(self._sources.is_rebound(name, owners) for name, owners in names)
        if any(self._sources.is_changed_in_body(name, owners) for name, owners in names):
            return None
        if sliced is None or sliced.follows_from_bodies(difference, self._loops_over_batches()):
            return None
        return not any(self._sources.is_rebound(name, owners) for name, owners in names)

    def _loops_over_batches(self) -> list[tuple[ast.AST, int]]:
        """Return the headers of the loops over batches, by module and line."""
        sources = [(Source.read(file), line) for file, line in self._places]
        return [(source.tree, line) for source, line in sources if source is not None]

    def left_by_bodies(self) -> dict[str, str]:
        """Return the variables in which bodies add up values of batches, or that they bind under a condition, and on which, by
        the script's source, the gradient or the end of the loop depends, each with the line. Those that the job has, and of
        `run.local`, are left out.
        """
        places, sliced = self._loops_over_batches(), self._sliced()
        found = [] if sliced is None else [*sliced.added_up(places), *sliced.bound_at_times(places)]
        registered = self.state.registered.mentioned()
        kept = [each for each in found if each[0] not in registered and not self.is_local(each[0])]
        return {name: str(self._sources.line_in(tree, line)) for name, tree, line in kept}

    def left_in_registered(self, frame: FrameType | None) -> dict[str, str]:
        """Return the values of registered objects that bodies make from their previous ones, and on which, by the script's
        source, the gradient depends, each with the line. A module's tensors are left out, which `MutationGuard` watches.
        frame: as for `now`.
        """
        objects = [each for each in self.state.registered.with_state() if not isinstance(each, nn.Module)]
        if not objects:
            return {}
        seen = look(self.frame(frame), self._bound, carried(self.state, but=objects) | self.known, self.limits)
        known = {each.name for each in self.now(frame).every()}
        found = [each for each in seen.every() if each.name not in known and self.carries(each)]
        return {each.name: str(self._sources.where(each.name, each.owners)) for each in found}

    def changed_in_data(self, frame: FrameType | None) -> list[Difference]:
        """Return the dataset's values that the loop has changed since it began. frame: as for `now`."""
        return [each for each in self.changed(frame) if _is_of_data(each)]

    def changed_copies(self, before: Reach) -> list[Difference]:
        """Return the dataset's values that lines of the loop had changed when `before` was taken, if processes read that have
        copies of the dataset from before the change: those of another process may have other copies.
        """
        every = before.every() if self.reads_ahead else ()
        found = [each for each in every if each.node.changed and not each.node.parts and _is_of_data(each)]
        return [each for each in found if self._is_changed_in_loop(each)]

    def own_files(self) -> dict[str, str]:
        """Return the calls by which a process names files of its own that the script reads, each with the line."""
        sliced = self._sliced()
        found = [] if sliced is None else sliced.own_files()
        return {text: str(self._sources.line_in(module, line)) for text, module, line in found}

    def unseen(self, frame: FrameType | None) -> dict[str, str]:
        """Return the objects that cannot be read, such as a connection to a database, of which loop bodies call methods, and on
        which the training depends by the source; each with its type and the line. frame: as for `now`.
        """
        if (sliced := self._sliced()) is None:
            return {}
        seen = [each for each in self.now(frame).every() if each.node.kind is Kind.UNSEEN and not each.in_data]
        used = [(each, sliced.used_at(each)) for each in seen]
        return {
            each.name: f"{each.node.shown}, {self._sources.line_in(*place)}"
            for each, place in used
            if place is not None
        }

    def places(self, found: Sequence[Difference]) -> str:
        """Return these names, each with the line that changes it."""
        lines = [(each.name, self._sources.where(each.name, each.owners)) for each in found]
        return ", ".join(f"{name} ({place})" if place is not None else name for name, place in lines)

    def _look(self, frame: FrameType | None, bound: frozenset[str], beside: Mapping[str, Any] | None = None) -> Reach:
        known = carried(self.state) | self.known
        inner, frame = frame, self.frame(frame)
        if beside is None:
            environment = {name: os.environ.get(name) for name in self._environment}
            beside = {**self.beside, advice.MODE: self._mode(), **({ENVIRONMENT: environment} if environment else {})}
            beside |= self._of_others(frame)
            beside |= {name: each for name, each in self._of_generators(inner).items() if name in self._yielding}
        return look(frame, bound, known, self.limits, beside=beside).without(self.is_local)

    def _of_others(self, frame: FrameType | None) -> dict[str, types.SimpleNamespace]:
        """Return the attributes that the script gives to modules and classes of others, as far as they are there now, by the
        names of those.
        """
        found: dict[str, types.SimpleNamespace] = {}
        for name in self._foreign:
            owner, _, attribute = name.rpartition(".")
            given = vars(found.setdefault(owner, types.SimpleNamespace()))
            if frame is not None and (value := find(frame, name)) is not None:
                given[attribute] = value.value
        return found

    def _mode(self) -> bool | str:
        """Return whether the model's modules are in training mode; if only some are, the names of the others."""
        model = self.state.model
        others = [name for name, module in model.named_modules() if module.training is not model.training]
        return model.training if not others else f"{model.training}, but for {', '.join(others)}"


def carried(state: TrainingState, but: Collection[Any] = ()) -> frozenset[int]:
    """Return the ids of the objects that a job carries at present, with objects that the script has registered by
    `state_dict()`. but: registered objects to be left out.
    """
    objects = [*(module for _, module in state.modules), *state.optimizers, *state.schedulers, state.scaler]
    registered = [each for each in state.registered.objects() if not any(each is one for one in but)]
    return leave_out([*objects, *registered, *state.registered.tensors()])


def _is_of_data(difference: Difference) -> bool:
    return difference.in_data or difference.node.kind is Kind.DATA
