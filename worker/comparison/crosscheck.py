"""Cross-checks: every worker computes one micro-batch of a step, and the results are compared before the step is
applied.

A micro-batch is a function of the training state, the job's seed, the step and the virtual worker (design:
worker-runtime 11). So its samples and its gradient have the same bits on every worker. If one worker's differ, its
computation has another input: a Python value that the script keeps (a counter, a hidden state, a moving baseline),
other data, other code, or a GPU that computes wrongly. Comparing replicas (`states`) finds none of these, since all
replicas apply the same wrong gradient.

*When.* In the second step of a generation with new workers, before these host any virtual worker, and in the eight steps
after it if their scripts lack a value that may matter; soon after, in steps that become rarer; and then in one of 256
steps, or of 16 if they lack such a value, drawn from the seed. All workers know these steps, so a check needs no message
in other steps. Two more checks follow when a worker has told the others that a value which matters by the script's source
has begun to change (`_notice_changes`): bodies of the first one leave other values on a worker that has run one more, and
the second one compares them.

*How.* The loop gives the script the checked batch before its own batches, under the same seeds. Nothing of that body
counts for gradient, buffers or metrics (`stepping.PROBE`). Each worker's digests travel as a payload of the step
(`inband`). In the second step only new workers compute an additional body. The others run the bodies that they would
run without new workers, so their step is right whatever the result of the check, and is applied. In later checks all
workers compute the checked micro-batch: one more body.

*The verdict* is that of a comparison of replicas (`state.verdict`): the minority ends, or the job fails if there is
none. But new workers have no vote against the workers that have given them the state, in the whole generation in which
they have joined, however many they are: a new worker that differs ends with `exits.UNLIKE`, and the others train on
without it (`dismiss`). The job fails (`disagree`) if workers that have trained together differ in a value on which, by
the script's source, the loss depends: gradients of earlier steps, which every worker has applied, may be wrong, too.

Other participants of the step's payloads may also reveal a wrong new worker: a hyperparameter that its script has
derived from a counter, or calls that it has left out. These raise UserError on all workers alike. In the new workers'
second step such an error is theirs, since the others have trained together without them (`blame`).

A host's loop (`integrations`) is checked alike, since its step runs whatever batches it is given. The host's variables
are read by name only if a gradient differs: many of them are each worker's own. Not checked: jobs with `determinism:
none`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from ...protocol import exits
from ...protocol.errors import UserError
from ...protocol.model import OnDivergence
from ..communication.communicator import Communicator, CommunicatorBroken
from ..data.generators import digest_of_generators
from ..data.likeness import digest
from ..digests import mixed, of_values
from ..events import EnterGeneration
from ..inband import Part, exchange
from ..kept import Difference, Kind, Reach, differences
from ..state.verdict import Verdict, judge
from ..variables import advice
from ..variables.looking import SHARE_OF_EPOCH, Looking
from ..virtual import derive_seed
from .remarks import Remarks

# steps between checks: one more body in so many steps costs less than 0.5 % even with one virtual worker per worker
EVERY = 256
# the same in a generation with new workers that lack a value of which neither source nor proof shows that it has no effect
WATCHED_EVERY = 16
# checked steps of a generation, counted from 0, in addition to its second one
SOON = frozenset({2, 4, 8, 16, 32, 64, 128})
# Steps of a generation after which new workers count as proven: if their scripts keep the same values as the others', and
# otherwise. The latter costs the holders' time, which is bounded (s).
PROVEN_AFTER, PROVEN_LATE, PROOF_S = 2, 10, 60.0
SHARE = 200  # the time between two looks of later checks, in times of one look
CHECKS_OF_A_CHANGE = 2
# A script may use the value in some steps only, such as a penalty in each fourth or sixteenth one.
CHECKS_OF_A_DRIFT = 16
SAMPLES, GRADIENT = "the samples", "the gradient"


class CrossCheck:
    """This worker's part in cross-checks.

    A participant in the payloads of a step (`inband.Participant`); for the training thread.
    """

    name = "cross-check"
    slots = 0

    def __init__(
        self,
        virtual_workers: int,
        seed: int,
        on_divergence: OnDivergence,
        end: Callable[[int, str], NoReturn],
        looking: Looking,
        remarks: Remarks,
        counter_is_lost: Callable[[], bool] = lambda: False,
    ) -> None:
        """end: ends this process, with this exit code and for this reason. looking: reads the values that the script
        keeps. counter_is_lost: whether a body of this worker has changed a counter of bodies in another way.
        """
        self._counter_is_lost = counter_is_lost
        self._looking = looking
        self._remarks = remarks
        self._n = virtual_workers
        self._seed = seed
        self._on_divergence = on_divergence
        self._end = end
        self._workers: list[str] = []  # names with GPUs, by rank
        self._names: list[str] = []
        self._rank = 0
        self._begun = 0  # number of steps begun in this generation
        self._newcomers: frozenset[int] = frozenset()  # ranks that get the state in the generation's first step
        self._communicator = Communicator.alone()
        self.dismissed = ""  # reason why new workers end; the generation then ends with the step in progress
        self._proven_after = PROVEN_AFTER
        self._extends_proofs = True
        self._watched = False  # whether new workers of this generation lack a value that may still have an effect
        self._proof_begun_s = 0.0
        self.proof_goes_on = False  # new workers host nothing in the next step either
        self._proving = False  # whether new workers have to agree with the others in the step in progress
        self._virtual_worker: int | None = None  # the virtual worker that is checked in this step
        self._computed = False  # whether this worker has computed the checked micro-batch
        self._looked_at_s, self._look_took_s = 0.0, 0.0  # the last look of a check that is no proof
        self._noticed_at_s, self._notice_took_s = 0.0, 0.0  # the last look for values that begin to change
        self._passes, self._is_second = 0, False  # over the batches; whether the next step is the epoch's second
        self._changing: frozenset[str] = frozenset()  # names that have been seen to change in this generation
        self._wants_checks = False  # one that matters has begun to, which the others do not know yet
        self._checks_due = 0
        self._drifted: frozenset[str] = frozenset()  # names that were checked in the steps after they had differed
        self._looks: dict[int, tuple[Reach, Reach | None]] = {}  # looks of the workers that have taken one, by rank
        # `Looking.left_in_registered` at the beginning of a proof: this worker's, and the giver's once payloads are read
        self._registered: dict[str, str] = {}
        self._look: list[Any] | None = None  # this worker's `Looking.plain` at the beginning of such a step
        self._samples = 0
        self._gradient = 0
        self._drawn = ""  # a digest of the random generators after the checked micro-batch's gradient
        self._asked = False  # whether its loop body has read `is_leader` or `rank`
        # `_drawn` and `_asked` of each worker that has computed the micro-batch, by rank
        self._draws: dict[int, tuple[str, bool]] = {}

    def enter(self, entered: EnterGeneration, communicator: Communicator) -> None:
        """Begin a generation."""
        self._communicator = communicator
        self.dismissed = ""
        self._workers = [f"{each.worker} on {each.gpu}" for each in entered.roster.members]
        self._names = list(entered.roster.workers)
        self._rank = entered.rank
        self._begun = 0
        self._proven_after, self._extends_proofs = PROVEN_AFTER, entered.extends_proofs
        self._watched = False
        self._changing, self._wants_checks, self._checks_due = frozenset(), False, 0
        self._drifted = frozenset()
        self._newcomers = frozenset(transfer.target_rank for transfer in entered.transfers)
        self._virtual_worker = None

    def begin(
        self, step: int, has_samples: Callable[[int, int], bool], by_name: bool, micro_batches: int
    ) -> int | None:
        """Begin a step with so many micro-batches. Returns the number of the one that all workers compute, or None.

        by_name: the loop is the script's own, so that its variables may be read also if no gradient differs.
        """
        begun, self._begun = self._begun, self._begun + 1
        self._virtual_worker, self._proving, self._computed, self._look = None, False, False, None
        self.proof_goes_on = False
        if by_name:
            self._remarks.step_begins()
        if len(self._workers) < 2 or (begun == 0 and self._newcomers):
            return None  # new workers receive their state in that step
        drawn = derive_seed(self._seed, "cross-check", step)
        self._proving = bool(self._newcomers) and begun < self._proven_after
        if self._proving and begun == 1:
            self._proof_begun_s = time.monotonic()
        due, self._checks_due = self._checks_due > 0, max(0, self._checks_due - 1)
        if by_name:
            self._remarks.on_sums()
        if not self._proving and by_name:
            self._notice_changes()
        every = min(EVERY, WATCHED_EVERY) if self._watched else EVERY
        if not self._proving and not due and begun not in SOON and drawn % every:
            return None
        if self._proving and begun == 1 and by_name and (self._rank in self._newcomers or self._rank == self._giver):
            self._look = self._looking.plain(sys._getframe())
            self._registered = self._looking.left_in_registered(sys._getframe())
        if not self._proving and by_name and self._rank in self._two_to_compare(drawn):
            self._look_for_drift(soon=due or begun in SOON)
        candidates = [each for each in range(micro_batches) if has_samples(step, each)]
        self._virtual_worker = candidates[drawn // EVERY % len(candidates)]
        return self._virtual_worker

    def _two_to_compare(self, drawn: int) -> tuple[int, int]:
        """Return the ranks of two workers of which the scripts' values are compared in a later check."""
        others = [rank for rank in range(len(self._names)) if rank != self._giver]
        return self._giver, others[drawn // EVERY % len(others)]

    def _look_for_drift(self, soon: bool) -> None:
        """Look at the script's values, unless that takes too large a part of the time since the last such look. soon: in
        one of the first checks, which are few.
        """
        began_s = time.monotonic()
        if not soon and began_s - self._looked_at_s < SHARE * self._look_took_s:
            return
        self._look = self._looking.plain(sys._getframe())
        self._looked_at_s = time.monotonic()
        self._look_took_s = self._looked_at_s - began_s

    def _notice_changes(self) -> None:
        """Look whether a value that matters has begun to change on this worker, as far as the time allows."""
        began_s, passes = time.monotonic(), self._looking.passes
        second, self._is_second = self._is_second and passes == self._passes, passes != self._passes
        self._passes = passes
        share = SHARE_OF_EPOCH if second else SHARE
        if began_s - self._noticed_at_s < share * self._notice_took_s:
            return
        changed = self._looking.changed(sys._getframe())
        news = [each for each in changed if each.whole not in self._changing]
        self._changing |= {each.whole for each in news}
        self._wants_checks |= any(map(self._looking.matters, news))
        self._noticed_at_s = time.monotonic()
        self._notice_took_s = self._noticed_at_s - began_s

    @property
    def probes(self) -> bool:
        """Whether this worker computes the checked micro-batch although another worker hosts it."""
        return self._virtual_worker is not None and (not self._proving or self._rank in self._newcomers)

    def sampled(self, batch: Any) -> None:
        """Record the checked virtual worker's batch, before a loop body gets it."""
        self._samples = of_values(digest(batch))
        self._asked = False

    def asked_for_place(self) -> None:
        """Record that the loop body has read `is_leader` or `rank`."""
        self._asked = True

    def computed(self, gradient: int) -> None:
        """Record the digest of the checked virtual worker's gradient; in a step with several evaluations, one call for
        each.
        """
        self._gradient = mixed([self._gradient, gradient]) if self._computed else gradient
        self._computed = True
        self._drawn = digest_of_generators()

    # -- in band

    def numbers(self, part: Part) -> Sequence[int]:
        return ()

    def wants(self, part: Part) -> bool:
        self._remarks.bodies_have_run(part.step)
        self._wants_checks |= self._counter_is_lost()
        return self._virtual_worker is not None or self._wants_checks

    def wants_after(self, part: Part, greatest: Sequence[int]) -> bool:
        return False

    def payload(self, part: Part) -> Any:
        entries = [(SAMPLES, self._samples, ""), (GRADIENT, self._gradient, "")] if self._computed else None
        in_time = time.monotonic() - self._proof_begun_s < PROOF_S
        wants, self._wants_checks = self._wants_checks, False
        return {
            "entries": entries,
            "look": self._look,
            "draws": [self._drawn, self._asked],
            "in_time": in_time,
            "registered": self._registered,
            "wants": wants,
        }

    def read(self, part: Part, payloads: Sequence[Any]) -> None:
        """Compare the payloads. Raises CommunicatorBroken if the others are to continue without a worker that differs."""
        told = {rank: payload for rank, payload in enumerate(payloads) if payload is not None}
        if any(payload["wants"] for payload in told.values()):
            self._checks_due = CHECKS_OF_A_CHANGE
        if self._virtual_worker is None:
            return
        looks = {rank: payload["look"] for rank, payload in told.items()}
        self._looks = {rank: self._looking.of_plain(look) for rank, look in looks.items() if look is not None}
        self._draws = {rank: tuple(payload["draws"]) for rank, payload in told.items() if payload["entries"]}
        self._registered = told.get(self._giver, {}).get("registered", {})
        entries = [told[rank]["entries"] if rank in told else None for rank in range(len(payloads))]
        verdict = judge(entries, self._newcomers)
        if verdict is not None:
            text, of_script = self._sentence(verdict, part.step)
            if of_script and not self._proving:
                self.disagree(text)
            self.carry_out(verdict, self._newcomers, text)
        elif self._proving and not any(
            refuses(part.step) for refuses in (self._refuse_derived, self._refuse_lost, self._refuse_registered)
        ):
            self._remark_on_looks()
            self._extend_proof(bool(told[self._giver]["in_time"]))
        elif not self._proving:
            drifts = self._drifts()
            self._refuse_drift(part.step, drifts)
            self._check_drift(drifts)
            self._remark_on_drift()

    def carry_out(self, verdict: Verdict, newcomers: frozenset[int], text: str) -> None:
        """Act on a difference between workers, of which `text` gives the reason. newcomers: ranks that had no vote.

        Returns if only new workers are wrong that host nothing yet. Otherwise ends this process or raises
        CommunicatorBroken.
        """
        in_vain = bool(verdict.majority) and newcomers.issuperset(verdict.wrong)
        if in_vain and self._proving:
            self.dismiss(verdict.wrong, text)
            return
        if not in_vain and (not verdict.majority or self._on_divergence is OnDivergence.FAIL):
            self._end(exits.DISAGREED, text)
        if self._rank in verdict.wrong:  # if other new workers agree, the hardware is at fault
            self._end(exits.UNLIKE if in_vain and newcomers.issubset(verdict.wrong) else exits.DIVERGED, text)
        raise CommunicatorBroken(text)

    def dismiss(self, ranks: Iterable[int], text: str) -> None:
        """End these new workers.

        The others apply the step, in which new workers host nothing, and train on without them. All workers call this
        in the same step: no worker ends before all have read the payloads.
        """
        try:
            self._communicator.wait(self._communicator.all_reduce_max(torch.zeros(1, dtype=torch.int64)))
        except CommunicatorBroken:
            pass  # a worker has ended, so it had read the payloads
        if self._rank in ranks:
            self._end(exits.UNLIKE, text)
        self.dismissed = text

    def disagree(self, text: str) -> NoReturn:
        """End the job's workers: workers that have trained together differ in a value for which no majority can decide."""
        self._end(exits.DISAGREED, text)

    def _sentence(self, verdict: Verdict, step: int) -> tuple[str, bool]:
        """Describe the difference. Returns also whether the workers' scripts keep different values on which, by their
        source, the loss depends: other steps since the last check may then be wrong on all workers.

        Called by all workers in the same step: if none of them has taken a look, all do now.
        """
        wrong = ", ".join(self._workers[rank] for rank in verdict.wrong)
        verb = "differ" if len(verdict.wrong) > 1 else "differs"
        whom = "the workers that have the state" if verdict.majority else "each other"
        begin = f"step {step}: {wrong} {verb} from {whom} in {verdict.entry} of virtual worker {self._virtual_worker}"
        one, other = self._two_of(verdict)
        if not self._looks.keys() >= {one, other}:
            self._look_now()
        why, found = self._explain(one, other)
        if not found:
            why = self._of_registered(one, other) or why
        why = self._of_draws(one, other) or why
        if verdict.entry == SAMPLES:
            changed = self._looking.changed_in_data(sys._getframe())
            if changed:
                places = self._looking.places(changed[:3])
                text = f"the loop has changed {places} of the dataset, which processes that read ahead do not see"
                why = f"{text}: derive it from the epoch in the dataset's set_epoch(epoch)"
            elif why.startswith(advice.UNSEEN):
                why = "the data differ. Give all servers the same files, in the same order (sort lists of files)"
        return f"{begin}; {why}", any(map(self._looking.carries, found))

    def also_differs(self, verdict: Verdict) -> str:
        """Return a sentence about values that the scripts keep themselves, to add to a difference of states; "" if they
        agree.

        Called by all workers in the same step.
        """
        self._look_now()
        why, _ = self._explain(*self._two_of(verdict))
        return "" if why.startswith(advice.UNSEEN) else f". The script keeps values that differ, too: {why}"

    def _two_of(self, verdict: Verdict) -> tuple[int, int]:
        """Return two ranks that differ, the one that has had the state for longer first."""
        one, other = self._giver, verdict.wrong[0]
        if not self._newcomers.issuperset(verdict.wrong):
            one, other = sorted((other, next(rank for rank in range(len(self._names)) if rank != other)))
        return one, other

    @property
    def _giver(self) -> int:
        """The lowest rank that had the state when the generation began; new workers' looks are compared with this
        worker's.
        """
        return next(rank for rank in range(len(self._names)) if rank not in self._newcomers)

    def _explain(self, one: int, other: int) -> tuple[str, list[Difference]]:
        """Explain by the names under which their scripts keep different values why these two workers' results differ.
        Returns also the values.
        """
        if one not in self._looks or other not in self._looks:
            return advice.UNSEEN, []
        names = self._names[one], self._names[other]
        return self._looking.explain(self._looks[one][0], self._looks[other][0], names)

    def _of_registered(self, one: int, other: int) -> str:
        """Explain the difference by values of `run.register` that loop bodies have changed; "" if they agree.

        Called by all workers in the same step.
        """
        try:
            payloads = exchange(self._communicator, {"registered": self._looking.registered().plain()})
        except CommunicatorBroken:
            return ""
        given, there = (Reach.of(payloads[rank]["registered"]) for rank in (one, other))
        return advice.differs_registered(differences(given, there), (self._names[one], self._names[other]))

    def _of_draws(self, one: int, other: int) -> str:
        """Explain the difference by random numbers drawn in a loop body that reads its worker's place; else "".

        If only one of the two workers has computed the micro-batch, there is nothing to compare.
        """
        (drawn, asked), (drawn_there, asked_there) = (self._draws.get(rank, ("", False)) for rank in (one, other))
        if "" in (drawn, drawn_there) or drawn == drawn_there or not (asked or asked_there):
            return ""
        return advice.DRAWN

    def _look_now(self) -> None:
        try:
            payloads = exchange(self._communicator, {"look": self._looking.plain(sys._getframe())})
        except CommunicatorBroken:
            return  # all other workers are lost: there is no second script to compare with
        self._looks = {rank: self._looking.of_plain(payload["look"]) for rank, payload in enumerate(payloads)}

    def _refuse_derived(self, step: int) -> bool:
        """Dismiss new workers that have derived another value at the epoch's beginning; return whether any was
        dismissed.

        They compute the same result in this micro-batch, but other micro-batches may depend on the value, such as a
        teacher from later weights.
        """
        derived = {rank: look[1] for rank, look in self._looks.items() if look[1] is not None}
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

    def _refuse_lost(self, step: int) -> bool:
        """Dismiss new workers that lack a value that goes into a saved file, into the order of the next epoch, or into
        the loss; return whether any was dismissed.

        No gradient has depended on the value so far, such as an average of the weights, or a counter that is compared
        with a threshold.
        """
        return (
            self._refuse(step, "what the script saves, or decides by when to save or to end", self._looking.is_saved)
            or self._refuse(step, "what the sampler decides by", self._looking.decides_order)
            or self._refuse(step, "what the loss is computed from, now or in a later step", self._looking.carries)
            or self._refuse(step, "what decides when the training ends", self._looking.ends)
            or self._refuse(step, "what the loop has changed in the dataset", self._looking.is_changed_data)
        )

    def _refuse(self, step: int, what: str, is_such: Callable[[Difference], bool]) -> bool:
        giver = self._giver
        if giver not in self._looks:
            return False
        given = self._looks[giver][0]
        lost = {rank: self._looking.lost(given, self._looks[rank][0]) for rank in self._newcomers & self._looks.keys()}
        found = {rank: [one for one in each if is_such(one)] for rank, each in lost.items()}
        wrong = sorted(rank for rank, each in found.items() if each)
        if not wrong:
            return False
        sentences = self._looking.sentences(found[wrong[0]], (self._names[giver], self._names[wrong[0]]))
        who = ", ".join(self._workers[rank] for rank in wrong)
        verb = "lack" if len(wrong) > 1 else "lacks"
        self.dismiss(wrong, f"step {step}: {who} {verb} {what}; {sentences}")
        return True

    def _refuse_registered(self, step: int) -> bool:
        """Dismiss new workers if loop bodies change what the script has registered and the loss depends on: the new ones
        have received it, but each worker would go on from the bodies that it runs. Returns whether there is such a value.
        """
        if not self._registered:
            return False
        who = ", ".join(self._workers[rank] for rank in sorted(self._newcomers))
        self.dismiss(self._newcomers, f"step {step}: {who} cannot take part; {advice.of_registered(self._registered)}")
        return True

    def _extend_proof(self, in_time: bool) -> None:
        """Decide whether new workers are compared in the next step, too, before they host.

        They are if their scripts lack a value that the loop has changed, unless only a log reads it: no gradient has
        depended on it in this step, but another step's may. All workers come to the same decision. in_time: the giver
        has had time for it.
        """
        if self._begun == PROVEN_AFTER:
            looks, giver = self._looks, self._giver
            others = self._newcomers & looks.keys() if giver in looks else frozenset()
            undecided = (
                self._looking.undecided(self._looking.lost(looks[giver][0], looks[each][0])) for each in others
            )
            self._watched = any(undecided)
            if self._extends_proofs and self._watched:
                self._proven_after = PROVEN_LATE
            self._looks = {}  # a later difference is explained by the values of its own step
        self.proof_goes_on = in_time and self._begun < self._proven_after
        if not self.proof_goes_on:
            self._proven_after = self._begun

    def _remark_on_looks(self) -> None:
        """Remark on values that differ in the scripts of new workers, although no gradient has depended on them."""
        giver = self._giver
        if self._rank != giver or giver not in self._looks:
            return
        for rank in sorted(self._newcomers & self._looks.keys()):
            names = self._names[giver], self._names[rank]
            self._remarks.on_newcomer(self._looks[giver][0], self._looks[rank][0], names)

    def _drifts(self) -> Mapping[int, list[Difference]]:
        """Return the values that differ from the giver's, by the ranks of which this step's payloads have looks.

        Called by all workers in the same step.
        """
        if self._giver not in self._looks:
            return {}
        given, others = self._looks[self._giver][0], sorted(self._looks.keys() - {self._giver})
        return {rank: self._looking.lost(given, self._looks[rank][0]) for rank in others}

    def _refuse_drift(self, step: int, drifts: Mapping[int, list[Difference]]) -> None:
        """End the job's workers if the bodies of two have changed the dataset in different ways: samples depend on it.

        Entries that only one of two mappings has do not count: of a cache.
        """
        for rank, lost in drifts.items():
            found = [each for each in lost if not _is_of_a_mapping(each) and self._looking.is_changed_data(each)]
            if found:
                names = self._names[self._giver], self._names[rank]
                self.disagree(
                    f"step {step}: {self._workers[rank]} differs from {self._workers[self._giver]} in what the loop has "
                    f"changed in the dataset; {self._looking.sentences(found, names)}"
                )

    def _check_drift(self, drifts: Mapping[int, list[Difference]]) -> None:
        """Have the next steps checked if a value of two workers differs on which the loss depends."""
        for lost in drifts.values():
            news = {each.whole for each in lost if each.whole not in self._drifted and self._looking.carries(each)}
            if news:
                self._drifted |= news
                self._checks_due = CHECKS_OF_A_DRIFT

    def _remark_on_drift(self) -> None:
        """Remark on values that the bodies of two workers have changed in different ways."""
        if self._rank != self._giver or self._rank not in self._looks:
            return
        for rank in sorted(self._looks.keys() - {self._rank}):
            names = self._names[self._rank], self._names[rank]
            self._remarks.on_drift(self._looks[self._rank][0], self._looks[rank][0], names)

    def blame(self, error: UserError, step: int) -> frozenset[int]:
        """Dismiss the new workers in their second step, if payloads of the step show a difference.

        Returns their ranks; none in other steps.
        """
        if not self._proving:
            return frozenset()
        wrong = ", ".join(self._workers[rank] for rank in sorted(self._newcomers))
        self.dismiss(self._newcomers, f"step {step}: with {wrong}, which had just joined: {error}")
        return self._newcomers

    @property
    def newcomers(self) -> frozenset[int]:
        """Ranks that have to agree with the others in the step in progress."""
        return self._newcomers if self._proving else frozenset()

    @property
    def unproved(self) -> frozenset[int]:
        """Ranks that have not agreed with the others yet."""
        return self._newcomers if self._begun < self._proven_after else frozenset()

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def names(self) -> list[str]:
        """Names of the workers, by rank."""
        return self._names


def _is_of_a_mapping(difference: Difference) -> bool:
    """Return whether one worker lacks an entry, or the value is a mapping, whose entries may be those of a cache."""
    return None in (difference.ones, difference.others) or difference.node.type in (
        "dict",
        "OrderedDict",
        "defaultdict",
    )
