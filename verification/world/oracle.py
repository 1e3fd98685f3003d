"""The invariants. The oracle sees every event of a history, and raises `Violation` when an invariant is broken."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from elasticd.controller.cluster import Cluster
from elasticd.controller.events import Audit
from elasticd.controller.jobs import archive
from elasticd.controller.jobs.job import Job
from elasticd.controller.jobs.records import ArchivedJob, JobRecord, Submission, WorkerState
from elasticd.controller.jobs.stored import whole_of, workers_of
from elasticd.controller.reconcile.orders import KEPT_ORDERS
from elasticd.controller.records import JOBS, SUBMISSION, state_key, submission_key
from elasticd.controller.store import Delete, Put
from elasticd.protocol.messages import (
    Cancelled,
    EventKind,
    Order,
    PromiseState,
    Refused,
    Reply,
    Request,
    Scale,
    Scaled,
    StartWorker,
    StopWorker,
    Submitted,
    Withholding,
)
from elasticd.protocol.model import GpuAddress, JobId, JobPhase, Notify, ServerId, WorkerId, job_number
from elasticd.protocol.times import POLICY_RETRY_S, SERVER_LEASE_S
from elasticd.scheduler.amounts import Amounts, Need
from elasticd.scheduler.kinds import Demand, GpuSort

from .forged import is_believed
from .known import LONG_STEP_S, MISFITS_WITHIN_S, MOST_MISFITS, Knowledge, Known, Preempted
from .people import NOT_OTHERS, is_intruders
from .plan import SLOWER, Ending
from .plane import Group, Part
from .violation import Violation

DISTURBED_S = 20.0  # after the end of a fault that hit a job, within which the job may still lose processes or steps
CALM_S = 5.0  # after a fault, within which its targets may still be misjudged
ODD_S = 60.0
OVER_S = 60.0  # after which no worker trains for a job that has failed or was cancelled
TOLD_S = 45.0  # within which an agent has heard of stops, and the controller of ends
APART_S = 60.0  # within which an agent and a controller that are connected begin a session
WELL_S = 25.0  # within which undisturbed workers apply a step, if a step does not take longer
REVIEWED_S = 40.0  # within which a controller has reviewed all promises
STARTED_S = POLICY_RETRY_S  # within which a policy is asked again even if it has failed, or an event was overlooked
ANSWERED_S = SERVER_LEASE_S  # the longest that a controller, or an agent for it, is waited for before an answer
STARTS_WITHIN_S, MOST_STARTS = 60.0, 40  # starts on one GPU within the window
MOST_UNLIKE = 16  # newcomers of one job that differ, without a fixed share or a start from a checkpoint between them
FAILING = (Ending.RAISES, Ending.EXITS, Ending.NEVER_JOINS, Ending.FAILS_UNJOINED, Ending.OUT_OF_MEMORY)


class Oracle(Knowledge):
    """Checks each event against the invariants."""

    # -- inputs from the simulation

    def reigns(self, term: int, incarnation: str) -> None:
        """Check the term of a controller's state machine that sends a message to an agent."""
        if self._reigns.setdefault(term, incarnation) != incarnation:
            text = f"{incarnation} speaks in term {term}, in which {self._reigns[term]} has spoken"
            raise Violation("a term is of one reign", text)

    # -- processes

    def start_asked(self, gpu: str, worker: WorkerId) -> None:
        """Check how often workers are started on a GPU. The start, which an agent is about to make, may fail."""
        server, number = ServerId(gpu.partition("/")[0]), job_number(JobId(worker.rpartition(".")[0]))
        self._started[server] = max(number, self._started.get(server, 0))
        starts = self._starts.setdefault(gpu, deque(maxlen=MOST_STARTS))
        if len(starts) == MOST_STARTS and self._timeline.now - starts[0] < STARTS_WITHIN_S:
            text = f"{worker} is start number {MOST_STARTS + 1} on {gpu} within {STARTS_WITHIN_S:.0f} s"
            raise Violation("what fails is tried again after a while", text)
        starts.append(self._timeline.now)

    def process_started(self, gpus: Sequence[str], worker: WorkerId, name: str) -> None:
        """Check the process of a worker that has started on these GPUs, of the model `name`."""
        for gpu in gpus:
            there = self._on_gpu.setdefault(gpu, [])
            there.append(worker)
            if len(there) > 1:
                raise Violation(
                    "a GPU has one process", f"{worker} is started on {gpu}, where {', '.join(there[:-1])} runs"
                )
        job = JobId(worker.rpartition(".")[0])
        known = self.job(job)
        self._check_amounts(gpus[0].partition("/")[0])
        self._name_of[worker] = name
        began_on = "" if known.uncertain or self._begins_anew(known) else known.began_on
        if not Demand.of(known.plan.spec, began_on, known.agnostic).options([GpuSort(name)]):
            began = f", and the job began on {known.began_on}" if known.began_on else ""
            raise Violation("a worker runs on GPUs that its job may use", f"{worker} is started on {name}{began}")
        if not known.joined and not known.uncertain:
            self._begin_in_gang(job, known, worker)

    def _check_amounts(self, server: str) -> None:
        """Check that the workers on a server have not requested more cores or memory than it has."""
        gib = Amounts(1000, 1 << 30) * self._cores
        here = {worker: self.job(JobId(worker.rpartition(".")[0])) for worker in self._on(server)}
        if not gib or any(known.uncertain for known in here.values()):
            return  # a controller whose store is old does not know all processes
        taken = sum((Need.of(known.plan.spec).each for known in here.values()), Amounts())
        if gib.lacks(taken):
            raise Violation("workers have what they ask for", f"{', '.join(here)} on {server} ask for {taken} of {gib}")

    def _on(self, server: str) -> list[WorkerId]:
        """Return the workers with processes on a server, each once."""
        there = [workers for gpu, workers in self._on_gpu.items() if gpu.partition("/")[0] == server]
        return list(dict.fromkeys(worker for workers in there for worker in workers))

    def _begins_anew(self, known: Known) -> bool:
        """Return whether the job starts from the beginning, as nothing of an earlier start is left.

        There is no checkpoint, and no step was reported before the servers of all workers were lost.
        """
        record = known.record
        if record is None or known.wrote or record.progressed or record.saved_step is not None:
            return False
        return record.cycle > known.generation

    def may_mix(self, job: JobId) -> None:
        """Note that the operators of a heterogeneous job have one algorithm on all GPU types, as a worker has found."""
        self.job(job).agnostic = True

    def _begin_in_gang(self, job: JobId, known: Known, worker: WorkerId) -> None:
        """Check the start of a job without `elastic.join()`: only as a whole gang, and no more often than `restarts` allows."""
        generation = max((g for g, roster in known.rosters.items() if worker in roster), default=0)
        strangers = [other for other, theirs in known.living.items() if theirs != generation]
        allowed = known.plan.spec.restarts
        if strangers and allowed is not None:
            text = f"{worker} of generation {generation} begins beside {', '.join(strangers)}"
            raise Violation("a gang is never resized", text)
        # With unlimited restarts the controller does not wait for a silent server, where the command may have succeeded.
        for before, codes in known.runs.items() if allowed is not None else ():
            if before != generation and set(known.rosters.get(before, ())) == set(codes) and set(codes.values()) == {0}:
                text = f"{worker} begins, and all of generation {before} have ended with exit code 0"
                raise Violation("a command that has succeeded is not run again", text)
        known.runs.setdefault(generation, {})[worker] = None
        known.living[worker] = generation
        if allowed is not None and len(known.runs) > allowed + 1:
            text = f"{worker} begins run {len(known.runs)} of {job}, which may be run again {allowed} times"
            raise Violation("a command is run again as often as its user allows", text)

    def process_ended(self, gpus: Sequence[str], worker: WorkerId, code: int | None) -> None:
        for gpu in gpus:
            self._on_gpu[gpu].remove(worker)
        self._ended_at[worker] = self._timeline.now
        known = self.job(JobId(worker.rpartition(".")[0]))
        generation = known.living.pop(worker, None)
        if generation is not None:
            known.runs[generation][worker] = code

    def joined(self, job: JobId) -> None:
        """Note that a worker calls `elastic.join()`: from now on the job is elastic."""
        self.job(job).joined = True

    def differed(self, job: JobId) -> None:
        """Check the number of newcomers that end since their results differ: none is to follow while others have the state."""
        known = self.job(job)
        known.unlike += 1
        if known.unlike > MOST_UNLIKE:
            text = f"{known.unlike} newcomers of {job} have been tried, and none computes what the others do"
            raise Violation("a job whose newcomers differ does not grow", text)

    def misfitted(self, job: JobId) -> None:
        """Check the end of a newcomer while it received the state."""
        known, now = self.job(job), self._timeline.now
        if len(known.misfits) == MOST_MISFITS and now - known.misfits[0] < MISFITS_WITHIN_S:
            text = f"{MOST_MISFITS} newcomers of {job} have ended in their transfers within {MISFITS_WITHIN_S:.0f} s"
            raise Violation("what fails is tried again after a while", text)
        known.misfits.append(now)

    def passed_on(self, server: str, order: Order, heard: Order) -> None:
        """Check an order that an agent passes to a worker. `heard`: the newest order of this job that the agent has."""
        if order.uid == heard.uid and order.roster.generation < heard.roster.generation:
            text = f"{server} passes on order {order.roster.generation} of {order.job}, and has heard {heard.roster.generation}"
            raise Violation("what is overtaken is not passed on", text)

    # -- training

    def judge(self, group: Group, parts: dict[str, Part]) -> tuple[int, int]:
        """Check the parts of a step that all members have brought. Returns the step and the state after it."""
        job = JobId(group.roster.leader.rpartition(".")[0])
        known = self.job(job)
        name = f"{job}, generation {group.roster.generation}"
        steps = {part.step for part in parts.values()}
        states = {part.state for part in parts.values() if part.state is not None}
        if len(steps) != 1 or len(states) != 1:
            raise Violation("members agree on the state", f"{name}: {sorted(parts.items())}")
        (step,), (state,) = steps, states
        if set(parts) != set(group.roster.workers):
            raise Violation("a gang trains whole", f"{name}: {sorted(parts)} of {group.roster.workers}")
        wanted, covered = known.plan.spec.virtual_workers, 0
        for hosted in sorted((part.hosted for part in parts.values() if part.hosted), key=lambda hosted: hosted.start):
            if hosted.start != covered:
                break
            covered = hosted.stop
        if covered != wanted:
            text = f"{name}, step {step}: {[str(part.hosted) for part in parts.values()]} of {wanted}"
            raise Violation("a step has each virtual worker once", text)
        word = max(part.word for part in parts.values())
        if word:
            self._check_stopped(job, known, group, word)
            known.decided[group.roster.generation] = step
            known.follows[group.roster.generation] = word
        return step, hash((state, step, wanted))

    def _check_stopped(self, job: JobId, known: Known, group: Group, generation: int) -> None:
        """Check that no member of this next generation, on which a step has decided, has been ordered to stop."""
        concerned = {*group.roster.workers, *known.rosters.get(generation, ())}
        hit_at = max(self._controller_hit_until, *map(self._hit, concerned))
        if hit_at > self._timeline.now - CALM_S or known.uncertain:
            return
        for worker in known.rosters.get(generation, ()):
            if worker in known.stopped:
                ago_s = self._timeline.now - known.stopped[worker]
                text = f"{worker} was told to stop {ago_s:.1f} s ago, and is in generation {generation} of {job}, which follows"
                raise Violation("nobody is stopped who may be in the generation that follows", text)

    def applied(self, job: JobId, worker: WorkerId, generation: int, lineage: int, step: int, state: int) -> None:
        """Check a step that a worker has applied in a generation."""
        known = self.job(job)
        if known.states.setdefault(step, state) != state:
            raise Violation("all apply the same", f"{worker} has other bits after step {step} of {job}")
        if generation < known.generation:
            return  # a worker that was left out may continue for a while, without effect
        known.generation, known.applied_at = generation, self._timeline.now
        known.began_on = known.began_on or self._name_of[worker]
        known.newest_of[worker] = lineage, step
        over_s = self._timeline.now - known.over_at if known.over_at is not None else 0.0
        if over_s > OVER_S and self._timeline.now - self._hit(worker) > OVER_S:
            text = f"{worker} applies step {step} of {job}, {over_s:.0f} s after its end"
            raise Violation("a job that is over trains no more", text)
        furthest = known.frontier.get(lineage, -1)
        if step < furthest:
            raise Violation(
                "with a survivor at most the step in flight is repeated",
                f"{worker} applies step {step} of {job}, {furthest} was applied before",
            )
        known.frontier[lineage] = max(furthest, step)

    def steps_on(self, job: JobId, worker: WorkerId, generation: int, step: int) -> None:
        """Check that the generation in which a worker begins a step has not ended before this step."""
        decided = self.job(job).decided.get(generation)
        if decided is not None and step > decided:
            text = (
                f"{worker} begins step {step} of {job} in generation {generation}, which has ended with step {decided}"
            )
            raise Violation("all switch at the same boundary", text)

    def left(self, job: JobId, worker: WorkerId, generation: int) -> None:
        """Check the end of a worker that has left the roster: its generation needs it until a step has decided on the next."""
        known = self.job(job)
        if generation not in known.decided:
            raise Violation("nobody leaves before everybody knows", f"{worker} leaves generation {generation}")
        follows = known.follows[generation]
        if worker in known.rosters.get(follows, ()) and not known.uncertain:
            text = f"{worker} leaves generation {generation}, and {follows}, which it is in, has been decided"
            raise Violation("nobody leaves who is in the generation that follows", text)

    def epoch_ended(self, job: JobId, worker: WorkerId, epoch: int, least: int) -> None:
        """Check that a script may run the last lines of an epoch: evaluation, schedulers.

        `least`: the epoch of the state with which it started.
        """
        if epoch < least:
            text = f"{worker} runs the last lines of epoch {epoch} of {job}, and has a state of epoch {least}"
            raise Violation("what a state contains is not done again", text)
        self.job(job).epochs.add(epoch)

    def goes_on(self, job: JobId, generation: int) -> None:
        """Note that a generation continues from a checkpoint: earlier ones must not write checkpoints of the job any more."""
        known = self.job(job)
        known.checkpoint_of = max(known.checkpoint_of, generation)

    def saved(self, job: JobId, worker: WorkerId, step: int, epoch: int, generation: int) -> None:
        """Check a checkpoint that a worker has written, from which a script would continue with this epoch."""
        known = self.job(job)
        if generation < known.checkpoint_of and not known.uncertain:
            text = f"{worker} of generation {generation} of {job} writes, and {known.checkpoint_of} goes on from a checkpoint"
            raise Violation("who has been overtaken writes no checkpoint", text)
        known.wrote = True
        script = known.plan.script
        begun = step // (script.evaluate_every or script.steps)
        if epoch < begun or (epoch > 0 and epoch - 1 not in known.epochs):
            text = f"{worker} saves step {step} of {job} in epoch {epoch}; that step is in epoch {begun}"
            raise Violation("an epoch is over when its last lines have run", text)

    def begins(self, job: JobId, worker: WorkerId, step: int, state: int, least: int) -> int:
        """Check a first holder of the state, which begins after `step`: from a checkpoint, or (-1) from scratch.

        Returns its lineage.

        `least`: step of the newest checkpoint that the controller knows of, or -1.
        """
        known = self.job(job)
        resume = known.plan.spec.resume
        while resume is not None:  # the same bits as if the other job had never ended
            before = self.job(resume.job)
            resume = before.plan.spec.resume
            known.states = {**before.states, **known.states}
            known.epochs |= before.epochs
        if step < least:
            text = f"{worker} begins {job} after step {step}, and there is a checkpoint of step {least}"
            raise Violation("a job begins with its newest checkpoint, or not at all", text)
        if known.states.get(step) != state:
            raise Violation("all apply the same", f"{worker} begins {job} from other bits of step {step}")
        lost = known.frontier[known.lineage] - step
        self._check_preemption(job, known, step)
        known.lineage += 1
        known.unlike = 0
        known.frontier[known.lineage] = step
        known.repeated += max(0, lost)
        if self._story.on:
            self._story.say(f"{worker} begins after step {step}" + (f": {lost} steps are lost" if lost > 0 else ""))
        calm_s = known.applied_at - known.disturbed_at  # length of the undisturbed time before the last step
        if lost > 0 and calm_s > DISTURBED_S and known.plan.script.ending not in FAILING:
            text = (
                f"{worker} begins {job} after step {step}: {lost} steps are lost, {calm_s:.0f} s after the last fault"
            )
            raise Violation("only faults cost steps", text)
        return known.lineage

    def _check_preemption(self, job: JobId, known: Known, step: int) -> None:
        """Check a preempted job that starts again, or is cancelled, with `step` saved.

        The state of undisturbed workers must have been saved.
        """
        preempted, known.preempted = known.preempted, None
        if preempted is None or preempted.step - step <= 1 or known.plan.script.ending in FAILING:
            return
        calm_at = preempted.at - DISTURBED_S
        if self._controller_hit_until > calm_at:
            return
        able = [name for name, at in preempted.holders if max(self._hit(name), self._hit(at)) <= calm_at]
        if able and len(preempted.holders) - len(able) < 2:  # else the saver and its standby may both be lost
            text = (
                f"{job} has step {step} left, and was preempted after step {preempted.step}; {able[0]} had that state"
            )
            raise Violation("a preempted job loses nothing while somebody has its state", text)

    # -- the controller

    def stop_sent(self, server: ServerId, stop: StopWorker) -> None:
        """Check the controller's request to stop a worker, which may be known only from a forged status."""
        known = self._jobs.get(stop.job)
        if known is None or known.record is None:
            return
        if stop.save:
            known.saver = stop.saver
        elif any(entry.worker == stop.worker and entry.gpu.server == server for entry in workers_of(known.record)):
            known.stopped.setdefault(stop.worker, self._timeline.now)

    def _note_preemption(self, known: Known, before: JobRecord, record: JobRecord) -> None:
        if not before.orders or record.orders or record.phase is not JobPhase.PENDING:
            return
        step = known.frontier.get(known.lineage, -1)
        alive = {entry.worker: entry.gpu.server for entry in workers_of(record)}
        holders = tuple(
            (worker, alive[worker])
            for worker, (lineage, applied) in known.newest_of.items()
            if lineage == known.lineage and applied >= step - 1 and worker in alive
        )
        known.preempted = Preempted(self._timeline.now, step, holders)
        known.newest_of.clear()

    def recorded(
        self,
        writes: Sequence[Put | Delete],
        awaited: Collection[ServerId] = (),
        present: Collection[ServerId] = (),
    ) -> tuple[JobId, ...]:
        """Check the writes that the controller has committed. Returns the jobs that have ended in them.

        `awaited`: servers that are in the controller's store, and have not been heard of since its start; `present`: servers in a
        session with it.
        """
        self.commits += 1
        self._present = frozenset(present)
        changed: dict[JobId, None] = {}
        ended: list[JobId] = []
        archived = {self._archived(write) for write in writes if write.key.startswith(archive.PREFIX)}
        for write in writes:
            if not write.key.startswith(JOBS):
                continue
            value = write.value if isinstance(write, Put) else None
            if (stands := self._states.put(write.key, value)) is not None:
                changed[stands] = None
            job = stands or JobId(write.key.removeprefix(JOBS).removesuffix(SUBMISSION))
            if value is None:
                if job not in archived and write.key in (state_key(job), submission_key(job)):
                    raise Violation("an acknowledged request is never forgotten", f"{write.key} is deleted")
            elif write.key.endswith(SUBMISSION):
                self._check_submission(job, msgspec.msgpack.decode(value, type=Submission))
        for job in changed:
            self._check_state(job, awaited, ended)
        for job in changed:
            self._check_waiting(job, self.job(job))
        if changed:
            self._check_gpus()
            self._check_arrays()
        return tuple(ended)

    def _check_state(self, job: JobId, awaited: Collection[ServerId], ended: list[JobId]) -> None:
        state, known = self._states.get(job), self.job(job)
        if state is None:
            return  # it is in the archive
        record = whole_of(state)
        if record.phase.final and known.record is not None and not known.record.phase.final:
            ended.append(job)
        if known.record is not None and not known.uncertain:
            self._check_leaving(job, known.record, record, awaited)
            self._note_preemption(known, known.record, record)
        self.turning = self.turning or record.phase.final or (known.record or record).held != record.held
        self._check_record(job, known, record)

    def _archived(self, write: Put | Delete) -> JobId:
        """Check a job that was moved to the archive: it has to be finished, unchanged and without workers."""
        if isinstance(write, Delete):
            raise Violation("an acknowledged request is never forgotten", f"{write.key} is deleted")
        kept = msgspec.msgpack.decode(write.value, type=ArchivedJob)
        job = kept.submission.job
        known = self.job(job)
        if archive.key_of(kept.submission, kept.record.finished_s or 0.0) != write.key:
            raise Violation("an archived job is found again", f"{job} is put at {write.key}")
        if not kept.record.phase.final or workers_of(kept.record):
            raise Violation("an archived job is over", f"{job}: {kept.record.phase.value}, {workers_of(kept.record)}")
        self._check_submission(job, kept.submission)
        self._check_record(job, known, kept.record)
        return job

    def _check_submission(self, job: JobId, submission: Submission) -> None:
        known = self.job(job)
        number = job_number(job)
        other = self._numbers.setdefault(number, job)
        if other != job and self._store_replaced and not any(self._started.get(s, 0) >= number for s in self._present):
            self._numbers[number] = other = job  # the store has lost it, and the servers that ran it are away
        if other != job:
            raise Violation("an id is never used again", f"{other} and {job} have one number")
        self._check_owner(submission)
        before, known.submission = known.submission, submission
        if submission.job != job or (before is not None and not known.uncertain and before != submission):
            raise Violation("what was submitted never changes", f"{job}: {before}, then {submission}")
        if self._made_by.setdefault(submission.request, job) != job:
            text = f"{submission.request} has made {self._made_by[submission.request]} and {job}"
            raise Violation("a request is answered once", text)

    def _check_owner(self, submission: Submission) -> None:
        owner = self._people.owner(submission.spec.name)
        found = submission.owner, submission.account
        user = submission.spec.user if self._people.users else owner.name
        if found != (owner.name, owner.account) or user != owner.name:
            text = f"{submission.job} of {owner} is recorded for {found}, user {user}"
            raise Violation("a job belongs to who has submitted it", text)

    def _check_leaving(self, job: JobId, before: JobRecord, record: JobRecord, awaited: Collection[ServerId]) -> None:
        gone = {gpu.server for gpu in before.target if gpu not in record.target}.intersection(awaited)
        if gone and not record.phase.final:
            text = f"{job} is to leave {', '.join(sorted(gone))}, which the controller has not heard of yet"
            raise Violation("a controller that starts disturbs nobody", text)

    def _check_record(self, job: JobId, known: Known, record: JobRecord) -> None:
        before, known.record = known.record, record
        if before is not None:
            if before.phase.final and (record.phase, record.reason) != (before.phase, before.reason):
                raise Violation(
                    "an ended job stays as it ended", f"{job}: {before.phase.value}, then {record.phase.value}"
                )
            if record.generation < before.generation or record.committed < before.committed:
                raise Violation("generations grow", f"{job}: {before.generation}, then {record.generation}")
            if record.worker_count < before.worker_count:
                text = f"{job}: {before.worker_count} workers, then {record.worker_count}"
                raise Violation("an id is never used again", text)
        if record.peak_gpus < max((change.share for change in record.shares), default=0):
            raise Violation(
                "the peak is the greatest share", f"{job}: {record.peak_gpus}, and {record.shares[-1].share} now"
            )
        if before is None or record.phase is not before.phase:
            self._check_phase(job, known, record)
            known.over_at = self._timeline.now if record.phase in (JobPhase.CANCELLED, JobPhase.FAILED) else None
        self._check_share(job, known, record)
        if record.withheld is not None and not record.phase.final:
            self._check_withheld(job, before, record, record.withheld.how)

    def _check_waiting(self, job: JobId, known: Known) -> None:
        """Check that a job has GPUs only after the jobs for which it waits, and that only a user or a vain wait cancels it."""
        record = known.record
        if record is None or known.submission is None:
            return
        if record.phase is JobPhase.CANCELLED and not (known.cancelled or self._waits_in_vain(known)):
            raise Violation("an ended job stays as it ended", f"{job} is cancelled, and nobody has asked for it")
        for after in known.submission.spec.after if record.target or record.orders else ():
            other = self._jobs.get(after.job)
            if other is not None and other.record is not None and not other.record.phase.final:
                raise Violation("a job waits for others to end", f"{job} is to run, and {after.job} is not over")

    def _check_arrays(self) -> None:
        """Check that no more jobs of an array have GPUs than its limit allows."""
        for most, count in self._with_gpus().values():
            if count > most:
                raise Violation("an array has a limit", f"{count} of its jobs are to run, and {most} may")

    def _with_gpus(self) -> dict[str, tuple[int, int]]:
        """Return by array how many of its jobs may have GPUs, and how many have."""
        found: dict[str, tuple[int, int]] = {}
        for known in self._jobs.values():
            array = known.submission.spec.array if known.submission is not None else None
            if array is not None and array.most is not None and known.record is not None and known.record.target:
                found[array.array] = array.most, found.get(array.array, (0, 0))[1] + 1
        return found

    def _waits_in_vain(self, known: Known) -> bool:
        """Return whether a job that has to finish before this one has failed, or was cancelled, or is lost."""
        for after in known.submission.spec.after if known.submission is not None else ():
            other = self._jobs.get(after.job)
            ended = other.record.phase if other is not None and other.record is not None else None
            if not after.any and ended is not JobPhase.FINISHED:
                return ended is None or ended.final
        return False

    def _check_withheld(self, job: JobId, before: JobRecord | None, record: JobRecord, how: Withholding) -> None:
        """Check that a paused job has only processes that save its state; a held one may run on."""
        if how is Withholding.HOLD:
            held = before is not None and before.withheld == record.withheld and not before.target
            started = held and bool(record.target)
        else:
            started = bool(record.target or record.orders) or not all(entry.stopping for entry in workers_of(record))
        if started:
            text = f"{job} is {how.past}, and is to have {', '.join(map(str, record.target)) or 'workers'}"
            raise Violation("a job that a user stops does not run", text)

    def _check_share(self, job: JobId, known: Known, record: JobRecord) -> None:
        """Check that a share outside the job's range lasts only until the scheduler's next review.

        A fixed share may exceed the job's maximum, and is filled as far as GPUs are free.
        """
        share, gpus, by_hand = len(record.target), known.plan.spec.gpus, record.manual_share or 0
        each = known.plan.spec.gpus_per_server
        there = Counter(gpu.server for gpu in record.target)
        whole = each is None or set(there.values()) <= {each}
        begun = any(entry.state is not WorkerState.ORDERED for entry in workers_of(record))
        # fixed from its start on, whatever was recorded since
        fixed = begun and not record.joined and not record.committed
        if not share or fixed or (whole and (share == by_hand or gpus.min <= share <= max(gpus.max, by_hand))):
            known.odd_since = None
        elif known.odd_since is None:
            known.odd_since = self._timeline.now
        elif self._timeline.now - known.odd_since > ODD_S:
            asks = f"{gpus.min} to {gpus.max}" + (f", {each} on each server" if each else "")
            text = f"{job} is to have {share} GPUs on {len(there)} servers for {ODD_S:.0f} s, and asks for {asks}"
            raise Violation("a roster fits the plan", text)

    def _check_phase(self, job: JobId, known: Known, record: JobRecord) -> None:
        ending = known.plan.script.ending
        if record.phase is JobPhase.FAILED and ending not in FAILING and not self._may_fail(known):
            raise Violation("only the script's fault fails a job", f"{job}: {record.reason}")
        if record.phase is JobPhase.CANCELLED and record.withheld is not None and not workers_of(record):
            saving = record.withheld.how is Withholding.CANCEL
            if saving and not known.uncertain:
                self._check_preemption(job, known, record.saved_step if record.saved_step is not None else -1)
        if record.phase is JobPhase.FINISHED and not ending.joins:
            whole = [
                generation
                for generation, codes in known.runs.items()
                if set(known.rosters.get(generation, ())) == set(codes) and set(codes.values()) == {0}
            ]
            if not whole and not known.uncertain:
                raise Violation("a command has finished when all its processes have", f"{job}: {known.runs}")
        elif record.phase is JobPhase.FINISHED:
            last = known.plan.script.steps - 1
            if last not in known.states:
                raise Violation("a finished job has trained to its end", f"{job}: step {last} was never applied")
            shown = record.progress.step if record.progress is not None else None
            if shown != last:
                raise Violation("a finished job is shown with its last step", f"{job}: step {shown}, not {last}")

    def _may_fail(self, known: Known) -> bool:
        """Return whether the job may fail.

        It may when its time is up; if it is a disturbed command with limited restarts; and if it needs more workers than hold its
        state, while its newcomers never get the state.
        """
        needs_more = known.plan.script.ending in (Ending.UNLIKE, Ending.MISFITS) and known.plan.spec.gpus.min > 1
        limit_s, record = known.plan.spec.time_limit_s, known.record
        if limit_s is not None and record is not None and record.timed_out:
            return record.executed_s >= limit_s
        return needs_more or (known.plan.spec.restarts is not None and known.disturbed_at > float("-inf"))

    def _check_gpus(self) -> None:
        taken: dict[GpuAddress, JobId] = {}
        for job, known in self._jobs.items():
            record = known.record
            if record is None or known.uncertain:
                continue  # an old record may name workers that have ended since
            for entry in workers_of(record):
                if entry.state is WorkerState.ORDERED:
                    continue
                other = taken.setdefault(entry.gpu, job)
                if other != job:
                    raise Violation(
                        "a GPU serves one live generation", f"{entry.gpu} is recorded for {other} and {job}"
                    )

    def told(self, message: Order | StartWorker) -> None:
        """Check a message of the controller to an agent: its contents must be committed."""
        known = self.job(message.job)
        record = known.record
        if isinstance(message, StartWorker):
            owner = self._people.owner(message.spec.name)
            if (message.owner, message.account) != (owner.name, owner.account):
                text = f"{message.worker} of {owner} is started for {message.owner}, account {message.account}"
                raise Violation("a job belongs to who has submitted it", text)
        if isinstance(message, Order):
            if message.roster.generation not in known.rosters:
                known.told_at = self._timeline.now
            known.rosters[message.roster.generation] = message.roster.workers
            known.rosters.pop(message.roster.generation - KEPT_ORDERS, None)
        if record is None or known.uncertain:
            return
        if isinstance(message, Order):
            recorded = message.roster.generation <= record.generation
        else:
            recorded = any(entry.worker == message.worker for entry in (*workers_of(record), *record.past))
        if not recorded:
            raise Violation("record, then act", f"{message.job} is told of what is not in the store: {message}"[:200])

    def answered(self, request: Request | None, reply: Reply, stored: bool, name: str = "") -> None:
        """Check an answer that a client receives. `request`: None if it was answered before.

        `stored`: of a submission, whether the store has the job. `name`: the controller's key of the request.
        """
        if isinstance(reply.answer, Refused) and name in self._made_by:
            text = f"{reply.id} has made {self._made_by[name]}, and is refused: {reply.answer.reason}"
            raise Violation("what is refused has not been done", text)
        if isinstance(reply.answer, Submitted):
            job = reply.answer.job
            before = self._requests.setdefault(reply.id, job)
            if before != job:
                raise Violation("a request is answered once", f"{reply.id}: {before}, then {job}")
            if not stored:
                raise Violation("record, then act", f"{job} is acknowledged and not in the store")
        elif isinstance(reply.answer, Cancelled):
            known = self.job(reply.answer.job)
            known.cancelled = True
            if reply.answer.saving and known.record is not None and known.record.withheld is not None:
                return  # it ends once its state is saved
            if known.record is not None and known.record.phase is not JobPhase.CANCELLED:
                text = f"{reply.answer.job} is said to be cancelled, and is {known.record.phase.value}"
                raise Violation("record, then act", text)
        elif isinstance(reply.answer, Scaled) and isinstance(request, Scale):
            self.job(reply.answer.job).answered.append(request.share)
            self.job(reply.answer.job).unlike = 0
            self._rescaled.add(reply.answer.job)

    def audited(self, line: Audit) -> None:
        """Check a line of the audit log: no intruder's request may have been carried out."""
        if line.done and is_intruders(line.request):
            raise Violation(NOT_OTHERS, f"the audit log says: {line}")

    def shares_are_recorded(self) -> None:
        """Check, when all requests of a turn are answered, that one of a job's requested fixed shares is recorded."""
        for job in self._rescaled:
            known = self.job(job)
            answered, known.answered = known.answered, []
            record = known.record
            if record is not None and record.manual_share not in answered and not record.phase.final:
                text = f"{job} is said to have a share of {answered} by hand, and has {record.manual_share}"
                raise Violation("record, then act", text)
        self._rescaled.clear()

    def forgeries(self, cluster: Cluster, liars: Collection[ServerId]) -> None:
        """Check that the controller's state holds no forgery, and that it counts forgeries only of servers that forge."""
        for name, job in cluster.jobs.items():
            if is_believed(job):
                raise Violation("a forged report changes nothing", f"a lie is believed of {name}")
            if job.record.overtaken and not self.job(name).uncertain:
                raise Violation("a forged report changes nothing", f"{name} is taken for further than the store")
        if cluster.store_is_old and not self._store_replaced:
            raise Violation("a forged report changes nothing", "the store is taken for older than the cluster")
        honest = [f"{name}: {found.last}" for name, found in cluster.servers.forged.items() if name not in liars]
        if honest:
            raise Violation("an honest server is believed", "; ".join(honest))

    def well(self, well: Collection[str]) -> None:
        """Check that undisturbed jobs with an undisturbed controller make progress. `well`: workers that could train."""
        now = self._timeline.now
        self._well_since = {worker: self._well_since.get(worker, now) for worker in sorted(well)}
        for job, known in self._jobs.items():
            record, script = known.record, known.plan.script
            if record is None or record.phase.final or not record.target or not known.rosters or known.uncertain:
                continue
            newest = max(known.rosters)
            workers = {*known.rosters[newest], *(entry.worker for entry in workers_of(record))}
            if script.ending in FAILING or not script.ending.joins or not workers <= set(well):
                continue
            since = max(known.applied_at, known.told_at, self._controller_hit_until)
            since = max(since, *(max(self._well_since[each], self._hit(each)) for each in workers))
            step_s = script.step_s * (SLOWER if script.step_s > LONG_STEP_S else 1.0)  # begun while its server was slow
            if now - since > WELL_S + 2 * step_s + script.evaluate_s:
                text = f"{job}: all workers of generation {newest} are well, and none has applied a step for {now - since:.0f} s"
                raise Violation("workers that are well train", text)

    def startable(self, jobs: Collection[JobId]) -> None:
        """Check that jobs without GPUs are started where the policy would give them some that are free: at present, `jobs`."""
        now = self._timeline.now
        self._startable_since = {job: self._startable_since.get(job, now) for job in jobs}
        for job, since in self._startable_since.items():
            waits_s = now - max(since, self._controller_hit_until)
            if waits_s > STARTED_S:
                text = f"{job} has no GPU, and for {waits_s:.0f} s the policy would give it some that are free"
                raise Violation("a job that could run is started", text)

    def asked(self, heard: Mapping[str, float]) -> None:
        """Check that a request has its answer. `heard`: by its name, when the controller heard of each that waits."""
        for name, since in heard.items():
            waits_s = self._timeline.now - max(since, self._controller_hit_until)
            if waits_s > ANSWERED_S:
                text = f"{name} reached the controller {waits_s:.0f} s ago, and has no answer"
                raise Violation("what the controller has heard is answered", text)

    def deadlines(self, now: float, jobs: Iterable[Job]) -> None:
        """Check that a promised deadline is missed only after an announcement. `now`: by the controller's clock.

        A controller that was away at the deadline announces it on its return.
        """
        calm_s = self._timeline.now - self._controller_hit_until
        for job in jobs:
            late_s = now - job.deadline_s
            if not job.final and job.record.promise is PromiseState.HOLDS and 0 < late_s < calm_s - REVIEWED_S:
                raise Violation("a deadline is missed only after that was told of", f"{job.id}, {late_s:.0f} s late")

    def in_session(self, server: str, running: Collection[str]) -> None:
        """Check the workers of a server that is in a session with the controller."""
        now = self._timeline.now
        if max(self._hit(server), self._controller_hit_until) > now - TOLD_S or server in self._apart_since:
            return
        for job, known in self._jobs.items():
            for entry in workers_of(known.record) if known.record is not None and not known.uncertain else ():
                if entry.gpu.server != server or entry.state is WorkerState.ORDERED:
                    continue
                ended_s = now - self._ended_at.get(entry.worker, now)
                if entry.worker not in running and ended_s > TOLD_S:
                    text = f"{entry.worker} of {job} has ended {ended_s:.0f} s ago, and is taken for alive"
                    raise Violation("what has ended is taken in", text)
                stopped_s = now - known.stopped.get(entry.worker, now)
                if entry.worker in running and stopped_s > TOLD_S:
                    text = f"{entry.worker} of {job} was told to stop {stopped_s:.0f} s ago, and runs"
                    raise Violation("who is told to stop ends", text)

    def start_hangs(self, server: str, hanging: int, given_up: int) -> None:
        """Check that an agent has given up starts that take too long: `given_up` of `hanging` on its server."""
        if hanging > given_up:
            raise Violation(
                "what is waited for has a limit", f"{hanging - given_up} starts on {server} are not given up"
            )

    def session(self, server: str, stands: bool) -> None:
        """Check that an agent and a controller that are connected come into a session. `stands`: they are in one."""
        now = self._timeline.now
        if stands or self._controller_hit_until > now:
            self._apart_since.pop(server, None)
        elif now - self._apart_since.setdefault(server, now) > APART_S:
            text = f"{server} and the controller run, hear each other, and have not been in one session for {APART_S:.0f} s"
            raise Violation("a server that can be reached is taken in", text)

    # -- the end

    def wrong_end(self, job: JobId, cluster_gpus: int, why_it_waits: str) -> str:
        """Return why this job has not ended as it should; "" if it has. A job that can never run must wait with a reason."""
        known = self.job(job)
        record = known.record
        if record is None:
            return "" if known.uncertain else f"{job} is acknowledged and forgotten"
        if known.plan.spec.gpus.max > cluster_gpus and record.phase is JobPhase.PENDING and why_it_waits:
            return ""  # some policies give a job its maximum, or nothing
        if not record.phase.final:
            return f"{job} is {record.phase.value}"
        if record.phase is JobPhase.CANCELLED and (known.cancelled or self._waits_in_vain(known)):
            return ""
        if record.phase is JobPhase.FAILED and self._may_fail(known):
            return ""
        wanted = JobPhase.FAILED if known.plan.script.ending in FAILING else JobPhase.FINISHED
        return "" if record.phase is wanted else f"{job} is {record.phase.value}, not {wanted.value}: {record.reason}"

    def noticed(self, job: JobId, event: EventKind) -> None:
        """Note that a notice of this event was delivered."""
        self._noticed.add((job, event.value))

    def at_end(self) -> None:
        """Check the invariants of a whole history."""
        for job, known in self._jobs.items():
            ended = known.record.phase if known.record is not None and known.record.phase.final else None
            asked = Notify.END in known.plan.spec.notify and not known.uncertain
            if ended is not None and asked and (job, ended.value) not in self._noticed:
                raise Violation("a notice is delivered at least once", f"no notice tells that {job} has {ended.value}")
            finished = known.record is not None and known.record.phase is JobPhase.FINISHED
            if finished and known.plan.script.ending.joins:
                last = known.plan.script.steps - 1
                if known.states.get(last) is None:
                    raise Violation("a finished job has trained to its end", f"{job}: step {last} was never applied")
