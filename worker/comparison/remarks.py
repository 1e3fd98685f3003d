"""Remarks on values that a script keeps itself: the job's user gets each once, by name, as an event of the job.

A remark is no refusal. A new worker that computes other gradients does not join (`crosscheck`). A remark is about a
value that differs from a training without losses of workers, while no gradient is known to depend on it: the loop
bodies before have not changed a new worker's value; a restart from a checkpoint has lost it; loop bodies of a step that
was given up have changed it, and change it again; each worker's bodies change it in another way; or a function of
`run.evaluate` changes it. `run.local` declares that only a log reads such a value.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..kept import Difference, Reach, differences, last_name
from ..variables import advice
from ..variables.looking import Looking

NAMED = 3  # names in a message
EVALUATIONS = 3  # before and after which the values are looked at: scripts evaluate by the same functions again


class Remarks:
    """The remarks of one worker. For the training thread."""

    def __init__(
        self, looking: Looking, notice: Callable[[str], None], counters: Callable[[], Collection[str]] = frozenset
    ) -> None:
        """notice: reports a sentence as an event of the job. counters: returns the names of counters of bodies, which count
        no body twice (`body_counters`).
        """
        self._looking = looking
        self._counters = counters
        self._notice = notice
        self._told: set[str] = set()  # names that have had their remark
        self._repeats = False  # whether loop bodies have run for a step that was given up
        self._before: Reach | None = None  # values that the script kept before these bodies run again
        self._has_read_sums = False
        self._evaluations = 0
        self._before_evaluation: Reach | None = None

    def on_newcomer(self, given: Reach, newcomer: Reach, workers: tuple[str, str]) -> None:
        """Remark on a new worker, which computes the same gradients.

        given: values of the worker that has given it the state. A dataset's cache gets no remark, since cross-checks
        compare the samples.
        """
        self._tell(
            [each for each in self._looking.lost(given, newcomer) if not self._looking.is_cache(each)],
            lambda found, names: (
                f"{self._looking.sentences(found, workers)}. No gradient depends on it so far. If only a log does, say so: "
                f"run.local({names})"
            ),
        )

    def on_drift(self, ones: Reach, others: Reach, workers: tuple[str, str]) -> None:
        """Remark on two workers that train together, whose bodies have changed a value in different ways."""
        self._tell(
            [each for each in self._looking.lost(ones, others) if self._looking.matters(each)],
            lambda found, names: (
                f"{self._looking.sentences(found, workers)}. Both have trained from the same state, so the result depends on the "
                f"number of workers. If only a log reads it, say so: run.local({names})"
            ),
        )

    def on_sums(self) -> None:
        """Remark on values that bodies add up, or bind under a condition, and on which the training depends by the script's
        source, where several workers train: each has those of its own bodies. Called in each step; the source is read once.
        """
        if self._has_read_sums:
            return
        self._has_read_sums = True
        if names := self._new(self._looking.left_by_bodies()):
            self._say(
                f"loop bodies leave {names} to later ones, and what is trained, or when it ends, depends on that. Each worker "
                "runs only some of the bodies, so the result depends on the number of workers: use the job's averages, "
                "run.mean(…) in the body and run.means behind it, or keep the value by run.state(…)"
            )

    def on_restart(self, was: Any, same_epoch: bool, within: bool, restored: Collection[str] = ()) -> None:
        """Remark on a restart from a checkpoint in a new process, before any loop body.

        was: `Looking.plain` of the worker that wrote the checkpoint. same_epoch: the checkpoint is from the present epoch.
        within: it is from behind the epoch's first step. restored: last names of variables that the checkpoint contains
        (`ScriptVariables.restored`).
        """
        looking = self._looking
        (before, before_derived), derived = looking.of_plain(was), looking.derived
        self._on_lost_bodies(before, within, restored)
        found = looking.lost(before, looking.now(sys._getframe()))
        if same_epoch and before_derived is not None and derived is not None:
            known = {each.name for each in found}
            # What the checkpoint has restored is that of its moment, not of the epoch's beginning
            made = [each for each in differences(before_derived, derived) if last_name(each.name) not in restored]
            found += [each for each in made if each.name not in known]
        self._tell(
            [each for each in found if looking.may_act(each)],
            lambda found, names: (
                "the job goes on from a checkpoint without values that its script keeps itself: "
                f"{looking.sentences(found, ('the checkpoint', 'this start'))}. What only a log reads is said by "
                f"run.local({names})"
            ),
        )
        self._tell(
            found,
            lambda found, names: (
                f"the job goes on from a checkpoint without what its script has kept in {looking.places(found[:NAMED])}. As far "
                "as the source shows, nothing that is trained or saved depends on that. If something does, keep it by "
                f"run.state(…), otherwise run.local({names}) says so"
            ),
        )

    def _on_lost_bodies(self, before: Reach, within: bool, restored: Collection[str]) -> None:
        """Remark on what a restart has lost that no value shows, by the source. Arguments: as for `on_restart`."""
        looking = self._looking
        carried = {*restored, *map(last_name, self._counters())}
        if left := looking.left_behind(sys._getframe(), before, within, carried):
            self._say(f"the job goes on from a checkpoint, and {advice.begin_anew(left)}")
        if names := self._new(looking.own_files()):
            self._say(
                f"the job goes on from a checkpoint in another process, without the files whose names come from {names}, and the "
                "script reads such files: keep them below the job's directory, by a name that each process has"
            )
        if names := self._new(looking.unseen(sys._getframe())):
            self._say(
                f"the job goes on from a checkpoint without the changes of loop bodies to {names}, which cannot be read: "
                "keep with the job what the training depends on, in state = run.state(…)"
            )
        if copies := [each for each in looking.changed_copies(before) if each.whole not in self._told]:
            self._told |= {each.whole for each in copies}
            self._say(
                f"the job goes on from a checkpoint, and the loop had changed {looking.places(copies[:NAMED])} of the dataset, "
                "which processes that read ahead do not see until they begin anew, as now: derive it from the epoch in the "
                "dataset's set_epoch(epoch)"
            )
        if within and (collected := looking.collected(sys._getframe())) is not None:
            statement, place = collected
            self._say(
                f"the job goes on from a checkpoint in the middle of an epoch, and `{statement}` ({place}) gets the results of "
                "the epoch's later loop bodies alone: write `for batch in batches:`, and keep the results in a list of "
                "run.state(…) or as run.mean(…)"
            )

    # -- steps that are given up

    def step_given_up(self) -> None:
        """Record that loop bodies have run for a step that was given up: bodies of that step, or of the next, run
        again.
        """
        self._repeats = True

    def step_begins(self) -> None:
        """Begin a step, before any of its loop bodies."""
        if self._repeats:
            self._repeats, self._before = False, self._looking.now(sys._getframe())

    def bodies_have_run(self, step: int) -> None:
        """Compare after all of this worker's bodies: values that they have changed were also changed by the bodies
        given up.
        """
        if self._before is None:
            return
        before, self._before = self._before, None
        counted = self._counters()
        changed = differences(before, self._looking.now(sys._getframe()))
        self._tell(
            [each for each in changed if not any(one.name in counted for one in each.by_each_name)],
            lambda found, names: (
                f"a worker was lost, and loop bodies of step {step} have run for nothing before: "
                f"{self._looking.places(found[:NAMED])} {'has' if len(found) == 1 else 'have'} been changed by both. Keep with "
                f"run.state(...) what the training depends on, and say of the rest run.local({names})"
            ),
        )

    # -- evaluations

    def evaluation_begins(self) -> None:
        """Look at the values before a function of `run.evaluate` is called for this worker's part of the dataset."""
        self._evaluations += 1
        if self._evaluations <= EVALUATIONS:
            self._before_evaluation = self._looking.now(sys._getframe())

    def evaluation_ends(self, metrics: Sequence[Any]) -> None:
        """Compare the values: those that the function has changed get a remark, if what is trained or saved depends on them.
        metrics: those that the function updates for the runtime.
        """
        if self._before_evaluation is None:
            return
        before, self._before_evaluation = self._before_evaluation, None
        kinds = {type(each).__name__ for each in metrics}
        changed = differences(before, self._looking.now(sys._getframe()))
        self._tell(
            [each for each in changed if kinds.isdisjoint(each.owners) and self._looking.depends(each)],
            lambda found, names: (
                f"the function given to run.evaluate() changes {self._looking.places(found[:NAMED])}. Each worker calls it for "
                "its own part of the dataset, so the value depends on the number of workers, and what is trained or saved "
                "on the value: let the function return what is to be added up, or pass a metric of torchmetrics as metrics="
            ),
        )

    def _tell(self, found: Sequence[Difference], text: Callable[[Sequence[Difference], str], str]) -> None:
        """Send a remark. text: a function of the new names, and of the first of them as arguments of `run.local`.

        Times, and what only logs read by the script's source, get none.
        """
        news = [each for each in found if each.whole not in self._told and not self._looking.is_for_logs(each)]
        if news:
            self._told |= {each.whole for each in news}
            told = text(news, ", ".join(dict.fromkeys(f'"{each.whole}"' for each in news[:NAMED])))
            self._say(told)

    def _new(self, places: Mapping[str, str]) -> str:
        """Return the first of these names that have had no remark, each with its place; "" if all have had one."""
        news = {name: place for name, place in places.items() if name not in self._told}
        self._told |= news.keys()
        return ", ".join(f"{name} ({place})" for name, place in list(news.items())[:NAMED])

    def _say(self, told: str) -> None:
        warnings.warn(told, stacklevel=4)
        self._notice(told)
