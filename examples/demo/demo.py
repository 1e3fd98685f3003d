"""The demo: start a cluster, submit three jobs, show how they share it, report their quality, leave nothing behind.

Every end - success, a failure, Ctrl-C, SIGTERM, a closed terminal - goes through the same `finally`. Signals only set a
flag that every wait checks, so that no exception starts in the middle of an operation.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from types import FrameType

from elasticd.protocol.errors import ElasticError
from elasticd.protocol.messages import Answer, GetJobs, GetServers, Jobs, JobView, Request, Servers
from elasticd.protocol.model import GpuAddress, JobPhase

from .cluster import COMMAND_TIMEOUT_S, ROOT, Command, DemoCluster, Outcome
from .descriptions import ending
from .errors import DemoFailed, Interrupted
from .output import Output
from .picture import Mark
from .screen import Scene
from .story import Story, Words

SERVERS = 2
SLOTS = 2  # of each server
POLICY = "max-min"
POLL_INTERVAL_S = 0.1
LIMIT_S = 600.0
# A controller without an answer for so long has failed; shorter silences may come from other load
SILENCE_LIMIT_S = 60.0
DIGITS_ACCURACY = 0.97
LOG_LINES = 30
PICTURE = Path("out/demo-shares.png")


class Interruption:
    """Recorder of the first signal that asks for the end."""

    def __init__(self) -> None:
        self._signal: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number

    def check(self) -> None:
        """Raises Interrupted if a signal has asked for the end."""
        if self._signal is not None:
            raise Interrupted(self._signal)


class Demo:
    """One run of the demo."""

    def __init__(self, cluster: DemoCluster, output: Output, interruption: Interruption) -> None:
        self._cluster = cluster
        self._output = output
        self._interruption = interruption
        self._began_s = time.time()
        self._gpus: tuple[GpuAddress, ...] = ()
        self._jobs: tuple[JobView, ...] = ()
        self._heard_s = time.monotonic()
        self._call: tuple[Words, Command] | None = None
        self.marks: list[Mark] = []

    @property
    def jobs(self) -> tuple[JobView, ...]:
        return self._jobs

    def start_cluster(self) -> None:
        """Start the daemons. Raises DemoFailed, Interrupted."""
        self._output.note(f"elasticctl up --servers {SERVERS} --gpus {SLOTS} --policy {POLICY}")
        self._cluster.up(SERVERS, SLOTS, POLICY, lambda: self._tick("the daemons start"))
        self._heard_s = time.monotonic()
        while (answer := self._ask(GetServers())) is None:
            self._tick("the daemons start")
            time.sleep(POLL_INTERVAL_S)
        assert isinstance(answer, Servers)
        self._gpus = tuple(
            GpuAddress(server=view.server.server, index=gpu.index)
            for view in answer.servers
            for gpu in view.server.gpus
        )
        self._output.note(f"{len(answer.servers)} servers with {len(self._gpus)} slots are ready")

    def play(self) -> None:
        """Make all calls of the story and wait for all jobs. Raises DemoFailed, Interrupted."""
        story = Story(time.monotonic())
        deadline = time.monotonic() + LIMIT_S
        while not (story.over and all(job.phase.final for job in self._jobs)):
            if time.monotonic() > deadline:
                raise DemoFailed(f"not over within {LIMIT_S:.0f} s")
            self._look()
            self._advance(story)
            self._tick(self._doing())
            time.sleep(POLL_INTERVAL_S)
        self._tick("")

    def _ask(self, request: Request) -> Answer | None:
        """Return the answer, or None if none came in a moment. Raises DemoFailed after a minute without one."""
        try:
            answer = self._cluster.ask(request)
        except ElasticError as error:
            if time.monotonic() - self._heard_s > SILENCE_LIMIT_S:
                raise DemoFailed(str(error)) from None
            return None
        self._heard_s = time.monotonic()
        return answer

    def _look(self) -> None:
        answer = self._ask(GetJobs(final_too=True))
        if answer is None:
            return
        assert isinstance(answer, Jobs)
        self._jobs = tuple(sorted(answer.jobs, key=lambda job: job.submitted_s))

    def _advance(self, story: Story) -> None:
        if self._call is None:
            words = story.next(time.monotonic(), self._jobs)
            if words:
                self._output.note(f"elasticctl {' '.join(words)}")
                self.marks.append(Mark(time.time(), " ".join(words).replace("/job.yaml", "").replace("examples/", "")))
                self._call = words, self._cluster.elasticctl(*words)
            return
        words, command = self._call
        if (outcome := command.poll()) is not None:
            self._call = None
            story.ended(time.monotonic())
            self._take(words, outcome)

    def _take(self, words: Words, outcome: Outcome) -> None:
        """Handle the end of a call. A call that came too late for its job is no failure."""
        over = any(job.job in words and job.phase.final for job in self._jobs)
        if outcome.exit_code and not over:
            raise DemoFailed(f"elasticctl {' '.join(words)}: {outcome.text}")
        if words[0] != "submit":
            self._output.note(f"  {outcome.text}")

    def _doing(self) -> str:
        starting = [job for job in self._jobs if not job.phase.final and job.share_gpus < job.wanted_gpus]
        if starting:
            return f"{' and '.join(job.spec.name for job in starting)}: new workers load torch" + (
                ", the others train on" if any(job.share_gpus for job in starting) else ""
            )
        return "" if self._jobs else "submitting the first job"

    def _tick(self, doing: str) -> None:
        self._interruption.check()
        self._output.scene(Scene(time.time(), self._began_s, self._gpus, self._jobs, (), doing))


def main() -> int:
    """Run the demo; the exit code is 0 if all its promises held."""
    interruption = Interruption()
    output = Output()
    began_s = time.monotonic()
    cluster = DemoCluster()
    code = 1
    try:
        code = _perform(cluster, output, interruption)
    except Interrupted as error:
        code = error.exit_code
    except BrokenPipeError:
        code = 128 + signal.SIGPIPE
    except DemoFailed as error:
        print(f"demo: {error}", file=sys.stderr)
    finally:
        code = _clean_up(cluster, output) or code
    output.line(f"{time.monotonic() - began_s:.0f} s in all")
    return code


def _perform(cluster: DemoCluster, output: Output, interruption: Interruption) -> int:
    demo = Demo(cluster, output, interruption)
    began_s = time.time()
    with output:
        demo.start_cluster()
        demo.play()
    ended_s = time.time()
    output.line("")
    for job in demo.jobs:
        output.line(ending(job))
    from .picture import (
        draw,  # late, since importing matplotlib takes a second, which would delay the start
    )

    draw(ROOT / PICTURE, demo.jobs, SERVERS * SLOTS, began_s, ended_s, demo.marks)
    output.line(f"shares over time: {PICTURE}")
    return _verdict(cluster, demo.jobs)


def _verdict(cluster: DemoCluster, jobs: tuple[JobView, ...]) -> int:
    """Return 0 if all jobs have finished and the digits' accuracy is high enough; failures go to stderr."""
    code = 0
    for job in jobs:
        if job.phase is not JobPhase.FINISHED:
            log = cluster.elasticctl("logs", job.job).wait(COMMAND_TIMEOUT_S)
            print(
                f"demo: the end of the log of {job.job}:",
                *log.text.splitlines()[-LOG_LINES:],
                sep="\n  ",
                file=sys.stderr,
            )
            code = 1
        elif job.spec.name == "digits" and job.metrics.get("test_accuracy", 0.0) < DIGITS_ACCURACY:
            print(f"demo: {job.job} has less than {DIGITS_ACCURACY:.0%} test accuracy", file=sys.stderr)
            code = 1
    return code


def _clean_up(cluster: DemoCluster, output: Output) -> int:
    """Stop everything, and check that no process is left. Returns 1 if one was."""
    left: list[str] = []
    try:
        output.line("elasticctl down")
    except BrokenPipeError:
        pass
    left = cluster.down()
    for text in left:
        print(f"demo: had to be killed after `elasticctl down`: {text}", file=sys.stderr)
    if not left:
        output.line("no process is left behind")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
