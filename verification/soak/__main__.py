"""python -m verification.soak [--faults 2000] [--minutes 60] [--seed 1] [--hosts 4] [--out out/soak]

Fault injection on a real cluster. Hosts are namespaces of this machine, each with an agent, and a controller on the first; jobs
train across them; faults strike one after the other, and several last at the same time (`faults`).

At the end faults stop and all jobs end. Then each job must have finished; its result must equal that of the script alone, bit
for bit; its record of samples must have each one exactly once per epoch (`train`). Two durations are measured: how long each
disturbed job stood still (the longest time between two new steps around the fault), and how long no controller answered.

Results are written at once into `--out`; a further run adds to them, unless `--fresh` is given. Ctrl-C ends the faults, not the
checks: jobs run to their end, and the table contains what there is. The seed decides the faults, but not their timing.

Exit code 0: no work was lost. 1: some was; `--out` has the logs. 2: this machine does not permit namespaces.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from elasticd.protocol.messages import Ping, Pong

from ..hosts.lab import Lab, NotPermitted
from ..hosts.links import Links
from . import record
from .cluster import READY_WITHIN_S, Cluster, all_there, wait_for
from .faults import OF_MEMBERS, Fault, FaultInjector, Kind
from .jobs import Job, Jobs

APART_S = (0.3, 1.5)  # between two faults
CALM_S = 3.0  # after a fault that is to be alone
LOOK_EVERY_S = 1.0
TICK_S = 0.1
OVER_WITHIN_S = 900.0  # for all jobs to end after the last fault
PREFIX = "soak-"  # of a run's directory; the process number follows
LOG_BYTES = 200_000  # kept of each log when work was lost


class Prober(threading.Thread):
    """Probes continually whether a controller answers."""

    EVERY_S = 0.2

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(name="prober", daemon=True)
        self._desk = cluster.desk()
        self._ending = threading.Event()
        self._answers = [time.time()]

    def run(self) -> None:
        while not self._ending.wait(self.EVERY_S):
            if isinstance(self._desk.ask(Ping(), timeout_s=1.0), Pong):
                self._answers.append(time.time())
        self._desk.close()

    def end(self) -> None:
        self._ending.set()
        self.join()

    @property
    def answered(self) -> bool:
        """Whether a controller has answered recently."""
        return time.time() - self._answers[-1] < 3 * self.EVERY_S

    def silent_s(self, since_s: float, until_s: float) -> float | None:
        """Return the longest time without an answer that overlaps this period (s); None for none."""
        answers = [*self._answers, time.time()]
        first = next((i for i in range(len(answers) - 1, 0, -1) if answers[i] <= since_s), 0)
        return max(
            (b - a for a, b in zip(answers[first:], answers[first + 1 :], strict=False) if a <= until_s), default=None
        )


class SoakTest:
    def __init__(
        self, cluster: Cluster, records: record.Records, seed: str, jobs_at_once: int, kinds: Sequence[Kind]
    ) -> None:
        self._cluster = cluster
        self._records = records
        self._rng = random.Random(seed)
        self._desk = cluster.desk()
        self._prober = Prober(cluster)
        self.jobs = Jobs(cluster, self._desk, random.Random(f"{seed}/jobs"), jobs_at_once)
        self._injector = FaultInjector(cluster, self.jobs, self._rng, kinds)
        self._unsettled: list[Fault] = []
        self.count = 0
        self.troubles: list[str] = []
        self.stopping = threading.Event()

    def open(self) -> None:
        self.jobs.prepare()
        self._cluster.open()
        if not wait_for(lambda: all_there(self._desk, len(self._cluster.lab.hosts)), READY_WITHIN_S):
            raise TimeoutError(f"the cluster is not there within {READY_WITHIN_S:.0f} s")
        self._prober.start()

    def go_on(self, faults: int, lasts_s: float, alone: bool) -> None:
        """Inject faults until their number or the time is reached, or a stop is requested. alone: never two at a time."""
        deadline, due, look = time.monotonic() + lasts_s, 0.0, 0.0
        while not self.stopping.is_set() and time.monotonic() < deadline and self.count < faults:
            now = time.monotonic()
            self._heal()
            if now >= look:
                self._look()
                if self._prober.answered:  # otherwise the request would block this thread until its timeout
                    self.jobs.top_up()
                look = time.monotonic() + LOOK_EVERY_S
            if alone and (self._injector.lasting or self._unsettled):
                due = now + CALM_S
            if now >= due and any(job.trains for job in self.jobs.open):
                due = now + self._rng.uniform(*APART_S)
                self._strike()
            time.sleep(TICK_S)

    def end(self) -> None:
        """Heal all faults, and wait until the jobs have ended."""
        self._unsettled += self._injector.heal_all()
        tell("nothing breaks any more; the jobs that are left come to their end")
        deadline = time.monotonic() + OVER_WITHIN_S
        while (self.jobs.open or self._unsettled) and time.monotonic() < deadline:
            for name in self._cluster.lab.hosts:  # for a daemon that was killed just before its restart
                self._cluster.start_all(name)
            self._look()
            time.sleep(LOOK_EVERY_S)
        for job in self.jobs.open:
            phase = job.view.phase.value if job.view is not None else "never seen"
            self._trouble(
                f"{job.name} ({job.id}) does not end within {OVER_WITHIN_S:.0f} s: {phase}, step {job.applied[-1:]}"
            )
        self._settle(over=True)
        self._prober.end()
        self._desk.close()

    def _strike(self) -> None:
        fault = self._injector.strike()
        if fault is not None:
            self.count += 1
            names = ", ".join(job.name for job in fault.jobs) or "no job"
            tell(f"{self.count}: {fault.kind.value}: {fault.where} for {fault.lasts_s:.1f} s ({names})")

    def _heal(self) -> None:
        self._unsettled += self._injector.heal_due()

    def _look(self) -> None:
        for job in self.jobs.look(ask=self._prober.answered):
            self._over(job)
        self._settle()

    def _over(self, job: Job) -> None:
        verdict = job.verdict
        assert verdict is not None
        self._records.add(record.ended(self._records.run, job))
        if not verdict.finished or verdict.lost_samples or not verdict.equal:
            self._trouble(f"{job.name} ({job.id}): {verdict}")
        else:
            tell(f"{job.name} finished: nothing lost, equal bits")

    def _settle(self, over: bool = False) -> None:
        """Record healed faults with jobs that have made progress since; with `over`, all faults. A job that stands still may be
        hit again, so only at the end is it known not to recover."""
        for fault in list(self._unsettled):
            assert fault.healed_s is not None
            if over or all(job.verdict is not None or job.applied[-1][0] > fault.healed_s for job in fault.jobs):
                self._unsettled.remove(fault)
                self._records.add(record.struck(self._records.run, fault, time.time(), self._prober.silent_s))

    def _trouble(self, text: str) -> None:
        if text not in self.troubles:
            self.troubles.append(text)
            tell(f"TROUBLE: {text}")


def tell(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S', time.gmtime())}] {line}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--hosts", type=int, default=4, choices=range(2, 7))
    parser.add_argument("--slots", type=int, default=2, help="CPU slots of a host")
    parser.add_argument("--jobs", type=int, default=3, help="at once")
    parser.add_argument("--lease", type=float, default=10.0, help="of a server, in seconds")
    parser.add_argument("--controllers", type=int, default=1, help="several: on etcd, with a member beside each")
    parser.add_argument("--alone", action="store_true", help="never two faults at a time")
    parser.add_argument("--only", nargs="*", default=[], help="names of kinds, such as DATA_CUT")
    parser.add_argument("--fresh", action="store_true", help="forget the faults of earlier runs")
    parser.add_argument("--no-page", action="store_true", help="leave docs/reports/soak.md as it is")
    parser.add_argument("--out", type=Path, default=Path("out/soak"))
    options = parser.parse_args(arguments)
    without = OF_MEMBERS if options.controllers == 1 else ()
    kinds = [Kind[name] for name in options.only] or [kind for kind in Kind if kind not in without]
    names = [f"h{number + 1}" for number in range(options.hosts)]
    records = record.Records(options.out)
    if options.fresh:
        records.forget()
    began = time.monotonic()
    sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-") as scratch:
        directory = Path(scratch)
        try:
            with Lab(names, [directory]) as lab, Links(lab) as links:
                cluster = Cluster(lab, links, directory, names[: options.controllers], options.slots, options.lease)
                soak = SoakTest(cluster, records, options.seed, options.jobs, kinds)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, lambda *_: soak.stopping.set())
                try:
                    soak.open()
                    soak.go_on(options.faults, options.minutes * 60, options.alone)
                    soak.end()
                except BaseException:
                    keep_logs(directory, options.out / f"logs-{records.run}")
                    raise
                if soak.troubles:
                    keep_logs(directory, options.out / f"logs-{records.run}")
        except NotPermitted as reason:
            print(reason, file=sys.stderr)
            return 2
    minutes = (time.monotonic() - began) / 60
    records.add(
        record.Run(records.run, options.seed, minutes, options.hosts, options.controllers, soak.jobs.unanswered)
    )
    (options.out / "soak.json").write_bytes(record.as_json(records))
    if not options.no_page:
        record.write_page(records)
    print(record.summary(records), record.table(records), *soak.troubles, sep="\n")
    return int(bool(soak.troubles))


def sweep(temporary: Path) -> None:
    """Remove directories of killed runs; their hosts ended with them."""
    for left in temporary.glob(f"{PREFIX}*-*"):
        process = left.name.removeprefix(PREFIX).partition("-")[0]
        if process.isdecimal() and not Path(f"/proc/{process}").exists():
            shutil.rmtree(left, ignore_errors=True)


def keep_logs(directory: Path, to: Path) -> None:
    """Keep the ends of all logs, and the records of the jobs' steps."""
    for log in directory.rglob("*.log"):
        kept = to / log.relative_to(directory)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(log.read_bytes()[-LOG_BYTES:])
    shutil.copytree(directory / "steps", to / "steps", dirs_exist_ok=True)
    tell(f"logs: {to}")


if __name__ == "__main__":
    sys.exit(main())
