"""Cross-checks: one micro-batch of a step is computed by every worker, and the results are compared before the step is applied.

A micro-batch is a function of the training state, the job's seed, the step and the virtual worker (design: worker-runtime 11). So
its samples and its gradient have the same bits on every worker. If a worker's differ, then something else goes into them there:
a Python value that the script keeps (a counter, a hidden state, a moving baseline), other data, other code, or a GPU that
computes wrongly. Comparing replicas (`comparison`) finds none of these, since all replicas apply the same wrong gradient.

*When.* In the second step of a generation that has newcomers, before they host any virtual worker; soon after, in steps that
become rarer; and then in one of `every` steps, drawn from the seed. All workers know these steps, so a check needs no message in
other steps.

*How.* The loop gives the script the checked batch before its own batches, under the same seeds. Nothing of that body counts for
gradient, buffers or metrics (`stepping.PROBE`). Each worker's digests travel as a letter of the step (`inband`). In the second
step only newcomers compute something more. The others run the bodies that they would run without newcomers, so their step is
right whatever comes of the check, and is applied. In later checks all workers compute the checked micro-batch: one body more.

*The verdict* (`judge`) rests on who has proved itself. The worker that has begun the job, or read its checkpoint, has. A newcomer
has not, until it has agreed with a worker that has. A newcomer that differs has no vote against the workers that have given it
the state, in the whole generation in which it has joined, however many are like it: it ends with `exits.UNLIKE`, and the others
train on without it (`dismiss`). If workers that have proved themselves differ, the minority ends as in a comparison of replicas,
or the job fails where there is none.

A newcomer may also be found out by other participants of the step's letters: a hyperparameter that its script has derived from
a counter, calls that it has left out. These raise UserError on all workers alike. In newcomers' second step such an error is the
newcomers', since the others have trained together without them (`blame`).

Not checked: steps of host loops (`integrations`), which count the batches that they get, and jobs with `determinism: none`.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from ..protocol import exits
from ..protocol.errors import UserError
from ..protocol.model import OnDivergence
from . import advice
from .communication.communicator import Communicator, CommunicatorBroken
from .events import EnterGeneration
from .inband import Part, exchange
from .kept import Difference, Kind, Reach, differences
from .looking import Looking
from .state.digests import digests, mixed, of_values, together
from .virtual import derive_seed

EVERY = 256  # steps: a body more in one of them is less than half a percent of a step, however few virtual workers a worker hosts
SOON = frozenset(
    {2, 4, 8, 16, 32, 64, 128}
)  # steps of a generation, counted from 0, that are checked beside its second one


SAMPLES = "the samples"


@dataclass(frozen=True)
class Opinion:
    """What one worker has computed for the checked virtual worker. All fields are the same where nothing is wrong."""

    samples: int  # digest of the batch
    gradient: int  # digest of its gradient

    def differs_in(self, other: Opinion) -> str:
        return SAMPLES if self.samples != other.samples else "the gradient"


@dataclass(frozen=True)
class Verdict:
    """Ranks that differ from those whose word counts. `nobody_knows`: there is no majority among these."""

    wrong: tuple[int, ...]
    differs_in: str
    newcomers: bool = False  # only workers that have not proved themselves are wrong
    nobody_knows: bool = False


def judge(opinions: Mapping[int, Opinion], proved: frozenset[int]) -> Verdict | None:
    """The verdict on the opinions of each rank. proved: ranks whose word counts; if none of them has an opinion, all count.
    None: all agree."""
    counted = {rank: opinion for rank, opinion in opinions.items() if rank in proved} or dict(opinions)
    groups: dict[Opinion, list[int]] = {}
    for rank, opinion in counted.items():
        groups.setdefault(opinion, []).append(rank)
    if not groups:
        return None
    most = max(groups.values(), key=len)
    right = opinions[most[0]]
    wrong = tuple(sorted(rank for rank, opinion in opinions.items() if opinion != right))
    if not wrong:
        return None
    differs_in = opinions[wrong[0]].differs_in(right)
    if len(groups) == 1:
        return Verdict(wrong, differs_in, newcomers=True)
    nobody_knows = 2 * len(most) <= len(counted)
    among = tuple(sorted(rank for rank in wrong if rank in counted)) if not nobody_knows else tuple(sorted(counted))
    return Verdict(among, differs_in, nobody_knows=nobody_knows)


class CrossCheck:
    """This worker's part in it. A participant in the letters of a step (`inband.Participant`); for the training thread."""

    name = "cross-check"
    slots = 0

    def __init__(
        self,
        virtual_workers: int,
        seed: int,
        on_divergence: OnDivergence,
        end: Callable[[int, str], NoReturn],
        looking: Looking,
        remark: Callable[[str], None],
        every: int = EVERY,
    ) -> None:
        """end: ends this process, with this exit code and for this reason. looking: at what the script keeps. remark: is
        given what the job's user should know."""
        self._looking = looking
        self._remark = remark
        self._n = virtual_workers
        self._seed = seed
        self._on_divergence = on_divergence
        self._end = end
        self._every = every
        self._workers: list[str] = []  # by rank, with their GPUs
        self._names: list[str] = []
        self._rank = 0
        self._begun = 0  # steps of this generation
        self._newcomers: frozenset[int] = frozenset()  # ranks that get the state in the generation's first step
        self._proved = True  # this worker; of the first worker of a job that is true from the beginning
        self._communicator = Communicator.alone()
        self.dismissed = ""  # why newcomers have been told to end: this generation ends with the step in progress
        self._repeats = False  # loop bodies have run for a step that was given up
        self._before: Reach | None = None  # what the script had before they run again
        self._told: set[str] = set()  # names that were remarked on
        self._proving = False  # in the step in progress newcomers have to agree with the others
        self._virtual_worker: int | None = None  # checked in it
        self._computed = False  # by this worker
        self._looks: dict[int, Any] = {}  # of the workers that have looked, by rank
        self._look: list[Any] | None = None  # what its script keeps, when such a step begins
        self._samples = 0
        self._gradient = 0

    def enter(self, entered: EnterGeneration, communicator: Communicator) -> None:
        """The next steps are another generation's."""
        self._communicator = communicator
        self.dismissed = ""
        self._workers = [f"{each.worker} on {each.gpu}" for each in entered.roster.members]
        self._names = list(entered.roster.workers)
        self._rank = entered.rank
        self._begun = 0
        self._newcomers = frozenset(transfer.target_rank for transfer in entered.transfers)
        self._virtual_worker = None
        if self._rank in self._newcomers:
            self._proved = False

    def begin(self, step: int, has_samples: Callable[[int, int], bool], bodies: bool) -> int | None:
        """A step begins. Returns the virtual worker whose micro-batch all workers compute in it, if there is one. bodies: may the
        loop give the script a batch more?"""
        begun, self._begun = self._begun, self._begun + 1
        self._virtual_worker, self._proving, self._computed, self._look = None, False, False, None
        if self._repeats and bodies:
            self._repeats, self._before = False, self._looking.now(sys._getframe())
        if len(self._workers) < 2:
            self._proved = True  # there is nobody left to agree with
            return None
        if not bodies or (begun == 0 and self._newcomers):
            return None  # newcomers' state is on the way in that step
        drawn = derive_seed(self._seed, "cross-check", step)
        self._proving = begun == 1 and bool(self._newcomers)
        if not self._proving and begun not in SOON and drawn % self._every:
            return None
        if self._proving and (self._rank in self._newcomers or self._rank == self._giver):
            self._look = self.looks()
        candidates = [each for each in range(self._n) if has_samples(step, each)]
        self._virtual_worker = candidates[drawn // self._every % len(candidates)]
        return self._virtual_worker

    def looks(self) -> list[Any]:
        """What this worker's script keeps now, and what it has derived at the epoch's beginning, as plain values."""
        derived = self._looking.derived
        return [self._looking.now(sys._getframe()).plain(), derived.plain() if derived is not None else None]

    def restarted(self, was: Any, same_epoch: bool) -> None:
        """The job goes on from a checkpoint in a new process, and no loop body has run. was: `looks` of the worker that wrote the
        checkpoint. Tell the names whose values are lost. same_epoch: the checkpoint is of the middle of the present epoch."""
        now, derived = self.looks()
        found = [
            each for each in differences(Reach.of(was[0]), Reach.of(now)) if each.changed and not self._by_epoch(each)
        ]
        if same_epoch and was[1] is not None and derived is not None:
            known = {each.name for each in found}
            found += [each for each in differences(Reach.of(was[1]), Reach.of(derived)) if each.name not in known]
        if not found:
            return
        self._told |= {each.name for each in found}
        names = ", ".join(f'"{each.name}"' for each in found[:3])
        text = (
            f"the job goes on from a checkpoint without values that its script keeps itself: "
            f"{self._looking.sentences(found, ('the checkpoint', 'this start'))}. What only a log reads is said by "
            f"run.local({names})"
        )
        warnings.warn(text, stacklevel=2)
        self._remark(text)

    @property
    def probes(self) -> bool:
        """Does this worker compute the checked micro-batch though another worker hosts it?"""
        return self._virtual_worker is not None and (not self._proving or self._rank in self._newcomers)

    def sampled(self, batch: Any) -> None:
        """The checked virtual worker's batch, before a loop body has it."""
        self._samples = of_batch(batch)

    def computed(self, gradient: int) -> None:
        """The digest of the checked virtual worker's gradient."""
        self._gradient, self._computed = gradient, True

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        return ()

    def wants(self, part: Part) -> bool:
        if self._before is not None:  # this worker's bodies have run
            self._tell_repeated(part.step)
        return self._virtual_worker is not None

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        return False

    def letter(self, part: Part) -> Any:
        if not self._computed:
            return {"look": self._look}
        return {"samples": self._samples, "gradient": self._gradient, "proved": self._proved, "look": self._look}

    def read(self, part: Part, letters: Sequence[Any]) -> None:
        """Raises CommunicatorBroken where the others are to go on without a worker that differs."""
        if self._virtual_worker is None:
            return
        told = {rank: letter for rank, letter in enumerate(letters) if letter is not None}
        self._looks = {rank: look for rank, letter in told.items() if (look := letter.get("look")) is not None}
        said = {rank: letter for rank, letter in told.items() if "gradient" in letter}
        opinions = {rank: Opinion(letter["samples"], letter["gradient"]) for rank, letter in said.items()}
        proved = frozenset(rank for rank, letter in said.items() if letter["proved"]) - self._newcomers
        verdict = judge(opinions, proved)
        if verdict is not None:
            self._carry_out(verdict, part.step)
        elif self._proving and not self._refuse_derived(part.step):
            self._remark_on_looks()
        self._proved = True

    def _carry_out(self, verdict: Verdict, step: int) -> None:
        text = self._sentence(verdict, step)
        if verdict.newcomers and self._proving:
            self.dismiss(verdict.wrong, text)
            return
        if verdict.newcomers:  # they host virtual workers already: their step is not applied
            if self._rank in verdict.wrong:  # where other newcomers are right it is not the script
                self._end(exits.UNLIKE if self._newcomers.issubset(verdict.wrong) else exits.DIVERGED, text)
            raise CommunicatorBroken(text)
        text = f"{text}{self._looked_now(verdict)}"
        if verdict.nobody_knows or self._on_divergence is OnDivergence.FAIL:
            self._end(exits.DISAGREED, text)
        if self._rank in verdict.wrong:
            self._end(exits.DIVERGED, text)
        raise CommunicatorBroken(text)

    def dismiss(self, ranks: Iterable[int], text: str) -> None:
        """These newcomers end. The others apply the step, in which newcomers host nothing, and train on without them. All workers
        call this in the same step: nobody ends before everybody has read the letters."""
        try:
            self._communicator.wait(self._communicator.all_reduce_max(torch.zeros(1, dtype=torch.int64)))
        except CommunicatorBroken:
            pass  # a worker has ended, which has read them
        if self._rank in ranks:
            self._end(exits.UNLIKE, text)
        self.dismissed = text

    def _sentence(self, verdict: Verdict, step: int) -> str:
        wrong = ", ".join(self._workers[rank] for rank in verdict.wrong)
        verb = "differ" if len(verdict.wrong) > 1 else "differs"
        whom = "each other" if verdict.nobody_knows else "the workers that have the state"
        begin = (
            f"step {step}: {wrong} {verb} from {whom} in {verdict.differs_in} of virtual worker {self._virtual_worker}"
        )
        why = [self._names_that_differ(verdict.wrong[0])] if verdict.newcomers else []
        if verdict.differs_in == SAMPLES:
            changed = self._looking.changed_in_data(sys._getframe())
            if changed:
                places = self._looking.places(changed[:3])
                text = f"the loop has changed {places} of the dataset, which processes that read ahead do not see"
                why = [f"{text}: derive it from the epoch in the dataset's set_epoch(epoch)"]
            elif not why or why[0].startswith(advice.UNSEEN):
                why = ["the data differ. Give all servers the same files, in the same order (sort lists of files)"]
        return "; ".join([begin, *why])

    @property
    def _giver(self) -> int:
        """The lowest rank that had the state when the generation began: newcomers' looks are compared with this worker's."""
        return next(rank for rank in range(len(self._names)) if rank not in self._newcomers)

    def _names_that_differ(self, rank: int) -> str:
        """Why a newcomer computes something else: the names under which its script keeps other values."""
        return self._explain({rank: look[0] for rank, look in self._looks.items()}, self._giver, rank)

    def _explain(self, looks: Mapping[int, Any], one: int, other: int) -> str:
        if one not in looks or other not in looks:
            return advice.UNSEEN
        names = self._names[one], self._names[other]
        return self._looking.explain(Reach.of(looks[one]), Reach.of(looks[other]), names)[0]

    def _looked_now(self, verdict: Verdict) -> str:
        """As `_names_that_differ`, of workers of which none is a newcomer: all look at what their scripts keep now. Called by all
        workers in the same step."""
        try:
            letters = exchange(self._communicator, {"look": self._looking.now(sys._getframe()).plain()})
        except CommunicatorBroken:
            return ""
        looks = {rank: letter["look"] for rank, letter in enumerate(letters)}
        wrong = verdict.wrong[0]
        one, other = sorted((wrong, next(rank for rank in looks if rank != wrong)))
        return f"; {self._explain(looks, one, other)}"

    def _by_epoch(self, difference: Difference) -> bool:
        """Is it of a dataset that is told the epoch, which a newcomer's has still to be?"""
        return self._looking.told_epochs and (difference.in_data or difference.node.kind is Kind.DATA)

    def _refuse_derived(self, step: int) -> bool:
        """Newcomers compute what the others do in this micro-batch. Yet their scripts may have made something else at the epoch's
        beginning, such as a teacher from later weights, on which other micro-batches depend. Whether any newcomer ends for it."""
        derived = {rank: Reach.of(look[1]) for rank, look in self._looks.items() if look[1] is not None}
        given = derived.get(self._giver)
        if given is None:
            return False
        found = {rank: differences(given, derived[rank]) for rank in sorted(self._newcomers & derived.keys())}
        wrong = [rank for rank, each in found.items() if any(one.node.kind is not Kind.PLAIN for one in each)]
        if not wrong:
            return False
        first = wrong[0]
        sentences = self._looking.sentences(found[first], (self._names[self._giver], self._names[first]))
        who = ", ".join(self._workers[rank] for rank in wrong)
        self.dismiss(wrong, f"step {step}: {who} joined in the middle of an epoch, at whose beginning {sentences}")
        return True

    def _remark_on_looks(self) -> None:
        """Newcomers compute what the others do. Yet their scripts may keep other values, on which no gradient has depended."""
        giver = self._giver
        if self._rank != giver:
            return
        for rank in sorted(self._newcomers & self._looks.keys()):
            if giver not in self._looks:
                return
            found = differences(Reach.of(self._looks[giver][0]), Reach.of(self._looks[rank][0]))
            found = [
                each for each in found if each.changed and each.name not in self._told and not self._by_epoch(each)
            ]
            if found:
                self._told |= {each.name for each in found}
                sentences = self._looking.sentences(found, (self._names[giver], self._names[rank]))
                names = ", ".join(f'"{each.name}"' for each in found[:3])
                text = f"{sentences}. No gradient depends on it so far. If only a log does, say so: run.local({names})"
                warnings.warn(text, stacklevel=2)
                self._remark(text)
                return

    def repeats(self) -> None:
        """The step in progress is given up, and loop bodies have run for it: bodies of that step, or of the next, run again."""
        self._repeats = True

    def _tell_repeated(self, step: int) -> None:
        """The bodies of a step have run that follows one that was given up. What they change in the script's own values has been
        changed by the bodies before, too, which happens to no script that loses no worker. Tell the names, each once."""
        before, self._before = self._before, None
        assert before is not None
        found = [
            each for each in differences(before, self._looking.now(sys._getframe())) if each.name not in self._told
        ]
        if not found:
            return
        self._told |= {each.name for each in found}
        names = ", ".join(f'"{each.name}"' for each in found[:3])
        text = (
            f"a worker was lost, and loop bodies of step {step} have run for nothing before: "
            f"{self._looking.places(found[:3])} {'has' if len(found) == 1 else 'have'} been changed by both. Keep with "
            f"run.state(...) what the training depends on, and say of the rest run.local({names})"
        )
        warnings.warn(text, stacklevel=2)
        self._remark(text)

    def blame(self, error: UserError, step: int) -> frozenset[int]:
        """Letters of the step say that workers differ. In newcomers' second step that is their fault: they end. Returns their
        ranks; none in other steps."""
        if not self._proving:
            return frozenset()
        wrong = ", ".join(self._workers[rank] for rank in sorted(self._newcomers))
        self.dismiss(self._newcomers, f"step {step}: with {wrong}, which had just joined: {error}")
        return self._newcomers

    @property
    def newcomers(self) -> frozenset[int]:
        """Ranks that have to agree with the others in the step in progress."""
        return self._newcomers if self._proving else frozenset()


# ------------------------------------------------------------------------------------------------------------ digests


def of_batch(batch: Any) -> int:
    """A digest of a batch's contents: tensors, arrays, texts and numbers, in mappings, sequences and dataclasses. Other objects
    in a batch do not count."""
    tensors: list[torch.Tensor] = []
    plain: list[str] = []
    for each in _leaves(batch):
        if isinstance(each, torch.Tensor):
            tensors.append(each)
            plain.append(f"{each.dtype} {list(each.shape)}")
        else:
            plain.append(repr(each))
    return mixed([of_values(plain), *(of_tensors([each]) for each in tensors)])


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and not value.is_quantized:
            yield value
    elif isinstance(value, str | bytes | int | float | complex | bool | None):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name))
    elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
        yield value.tobytes()


def of_tensors(parts: Sequence[torch.Tensor]) -> int:
    """A digest of tensors on one device, in their order. Waits for the device."""
    return int(together(digests([part.detach() for part in parts]))) if parts else 0
