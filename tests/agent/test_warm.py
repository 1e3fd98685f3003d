"""Workers forked from a warm process, compared with the same workers executed in the ordinary way."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elasticd.agent import shim
from elasticd.agent.accounts import own_account
from elasticd.agent.disk import Disk
from elasticd.agent.environment import Surroundings, common_environment
from elasticd.agent.events import ProcessExited, ProcessFailed, ProcessStarted, StopSignal
from elasticd.agent.forkserver.client import WarmProcesses
from elasticd.agent.interpreters import located
from elasticd.agent.logfiles import JobFiles
from elasticd.agent.processes import Processes
from elasticd.agent.task_queues import TaskQueues
from elasticd.ctl import leftovers
from elasticd.protocol.messages import StartWorker
from elasticd.protocol.model import Gpu, GpuKind, GpuRange, JobId, JobSpec, WorkerId
from elasticd.runtime.clock import SteadyClock
from elasticd.runtime.loop import Loop

PATIENCE_S = 300.0
JOB = JobId("digits-1")


class Agent:
    """The processes part of an agent, without its sockets."""

    def __init__(self, state: Path, warm: bool, variables: dict[str, str] | None = None) -> None:
        self.state = state
        state.mkdir(exist_ok=True)
        self.loop = Loop(SteadyClock(), self._on_turn, lambda: time.time() + 0.02)
        around = Surroundings(
            agent_address="ipc:///nowhere",
            address="127.0.0.1",
            checkpoints=state / "checkpoints",
            gpus=(Gpu(index=0, kind=GpuKind.CPU, name="cpu", memory_bytes=0),),
            variables=variables or {},
        )
        own = own_account()
        standard = (own, located(sys.executable), common_environment(around, own))
        self.tasks = TaskQueues(self.loop.wake)
        files, clock = JobFiles(state / "jobs"), SteadyClock()
        self.warm = WarmProcesses(state, standard, self.loop, clock, self.tasks) if warm else None
        disk = Disk(state, files, around)
        self.processes = Processes(files, around, self.loop, clock, self.warm, self._on_end, self.tasks, disk)
        self.ends: dict[WorkerId, ProcessExited | ProcessFailed] = {}
        self.count = 0

    def _on_turn(self) -> None:
        self.tasks.deliver()
        self.processes.pass_time()
        if self.warm is not None:
            self.warm.pass_time()

    def _on_end(self, told: ProcessStarted | ProcessExited | ProcessFailed) -> None:
        if not isinstance(told, ProcessStarted):
            self.ends[told.worker] = told

    def until(self, holds: Callable[[], object]) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < give_up_at, "it did not come to pass"
            self.loop.turn()

    @property
    def zygotes(self) -> list[int]:
        """Process ids of the warm processes."""
        assert self.warm is not None
        return [process.child.pid for process in self.warm._processes.values()]

    def wait_until_warm(self) -> int:
        assert self.warm is not None
        self.until(lambda: [process for process in self.warm._processes.values() if process.watched])
        return self.zygotes[0]

    def start(
        self, *command: str, workdir: Path | str = "/", env: dict[str, str] | None = None, joins: bool = True
    ) -> WorkerId:
        worker = WorkerId(f"{JOB}.{self.count}")
        self.count += 1
        environment = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"} | (env or {})
        spec = JobSpec(
            name="digits",
            command=command,
            gpus=GpuRange(min=1, max=2 if joins else 1),
            virtual_workers=2,
            workdir=str(workdir),
            env=environment,
            restarts=None if joins else 0,
        )
        assert self.processes.start(StartWorker(job=JOB, worker=worker, gpu=0, spec=spec, generation=1)) is None
        return worker

    def run(self, *command: str, **options: object) -> tuple[WorkerId, ProcessExited | ProcessFailed]:
        worker = self.start(*command, **options)  # type: ignore[arg-type]
        self.until(lambda: worker in self.ends)
        return worker, self.ends[worker]

    def record(self, worker: WorkerId) -> dict:
        path = self.state / "jobs" / JOB / f"{worker}.json"
        self.until(lambda: path.exists() and json.loads(path.read_text()).get("pid"))
        return json.loads(path.read_text())

    def log(self, worker: WorkerId) -> list[str]:
        """Lines with their stream: those of stdout, then those of stderr, since their interleaving is random."""
        path = self.state / "jobs" / JOB / f"{worker}.log"
        lines = [line.split(" ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line[0] == "o"] + [line for line in lines if line[0] == "e"]

    def was_forked(self, worker: WorkerId) -> bool:
        self.until(lambda: worker in self.processes._watched)
        return self.processes._watched[worker].child is None

    def close(self) -> None:
        running = [watched.pid for watched in self.processes._watched.values()]
        self.processes.close()
        if self.warm is not None:
            self.warm.close()
        self.tasks.close()
        for pid in running:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.loop.close()


@pytest.fixture(scope="module")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("cold"), warm=False)
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    agent = Agent(tmp_path_factory.mktemp("warm"), warm=True)
    agent.wait_until_warm()
    yield agent
    agent.close()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timeout replaces a warm process on a slow machine; tests of such timeouts set their own limits."""
    monkeypatch.setattr("elasticd.agent.forkserver.client.LOADED_WITHIN_S", PATIENCE_S)
    monkeypatch.setattr("elasticd.agent.forkserver.client.ANSWER_WITHIN_S", PATIENCE_S)


def is_gone(pid: int) -> bool:
    return shim.start_ticks(pid) is None


SURROUNDINGS = """
import sys, os, signal, json, threading, stat
main = sys.modules["__main__"]
known = ("__name__", "__file__", "__doc__", "__package__", "__cached__", "__annotations__")
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(), "executable": sys.executable,
    "prefix": sys.prefix, "flags": str(sys.flags), "warnings": sys.warnoptions,
    "environment": {n: v for n, v in os.environ.items()
                    if not n.startswith("ELASTICD_") and n not in ("TMPDIR", "TORCHELASTIC_ERROR_FILE")},
    "worker": os.environ["ELASTICD_JOB"],
    "main": {n: repr(getattr(main, n, "missing")) for n in known}, "spec": str(getattr(main.__spec__, "name", None)),
    "loader": type(main.__loader__).__name__,
    "same main": main.__dict__ is globals(), "names": sorted(set(globals()) - {"__spec__"}),
    "signals": {s.name: str(signal.getsignal(s)) for s in signal.valid_signals() if isinstance(s, signal.Signals)},
    "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "leader": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "descriptors": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0] for n in os.listdir("/proc/self/fd")
                          if os.path.exists(f"/proc/self/fd/{n}")),
    "threads": threading.active_count(), "nice": os.nice(0), "umask": os.umask(0o22), "policy": os.sched_getscheduler(0),
    "stdio": [(f.name, f.mode, f.encoding, f.errors, f.line_buffering, f.write_through, f.seekable())
              for f in (sys.stdin, sys.stdout, sys.stderr)],
    "stdout": stat.S_ISFIFO(os.fstat(1).st_mode), "hooks": [sys.excepthook is sys.__excepthook__],
    "frames": sys._getframe().f_code.co_name, "module hidden": "shim" in sys.modules or "warm" in sys.modules,
    "cmdline": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)), "children": "",
}, sort_keys=True))
"""

ENDS = {
    "a clean end": "print('hello')",
    "an exception": "def f():\n    raise ValueError('bad')\nf()",
    "a chained exception": "try:\n    {}['x']\nexcept KeyError:\n    raise RuntimeError('worse')",
    "a syntax error": "print('never'\nx = = 1",
    "an exit code": "import sys; sys.exit(7)",
    "an exit without a code": "raise SystemExit",
    "an exit with a text": "import sys; sys.exit('no data')",
    "os._exit": "import os; os._exit(9)",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "import os; os.kill(os.getpid(), 11)",
    "handlers at exit": "import atexit\natexit.register(print, 'bye')\nraise ValueError('bad')",
    "the last exception": "import atexit, sys\natexit.register(lambda: print(repr(sys.last_value)))\nraise ValueError('bad')",
    "a thread that goes on": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.2), print('done'))).start()\nprint('main ends')",
    "a hook": "import sys\nsys.excepthook = lambda t, v, tb: print('hooked', t, v, tb.tb_frame.f_code.co_name)\n1 / 0",
    "a hook that fails": "import sys\ndef hook(*_):\n    raise OSError('hook')\nsys.excepthook = hook\n1 / 0",
    "unfinished lines": "import sys; sys.stdout.write('no newline'); sys.stderr.write('here too')",
    "classes of main": "import pickle\nclass A: pass\nprint(pickle.loads(pickle.dumps(A())).__class__, A.__module__)",
    "processes of its own": "import multiprocessing as m\ndef f(x):\n    return x * x\nif __name__ == '__main__':\n"
    "    print(m.get_context('fork').Pool(2).map(f, range(4)), m.get_context('spawn').Pool(1).map(f, range(4)))",
    "loading by processes": "import torch\nfrom torch.utils.data import DataLoader\n"
    "print(torch.cat(list(DataLoader(torch.arange(8.0), batch_size=2, num_workers=2))).tolist())",
    "two threads of torch": "import torch\ntorch.set_num_threads(2)\nprint(torch.ones(1 << 20).sum().item())",
    "temporary files": "import tempfile; print(tempfile.gettempdir())",
    "future statements": "def f(x: undefined): pass",
    "its own modules": "import config, shim, launch",
    "elastic": "import elasticd as elastic\nprint(elastic.join)",
}


@pytest.mark.parametrize("how", ["script", "absolute", "link", "unbuffered", "module", "package"])
def test_a_forked_script_finds_what_an_executed_one_finds(tmp_path: Path, cold: Agent, warm: Agent, how: str) -> None:
    (tmp_path / "lib" / "pack").mkdir(parents=True)
    for name in ("show.py", "lib/pack/__main__.py", "lib/pack/__init__.py"):
        (tmp_path / name).write_text(SURROUNDINGS if "init" not in name else "")
    (tmp_path / "linked.py").symlink_to(tmp_path / "lib" / "pack" / "__main__.py")
    command = {
        "script": ["show.py", "--epochs", "3", "-x"],
        "absolute": [str(tmp_path / "show.py")],
        "link": ["./linked.py"],
        "unbuffered": ["-u", "show.py", ""],
        "module": ["-m", "show", "-u"],
        "package": ["-m", "lib.pack", "a b"],
    }[how]
    env = {"MODE": "fast", "TZ": "Asia/Tokyo", "CUDA_VISIBLE_DEVICES": "7", "UNUSUAL": "ü=\n"}
    outcomes = []
    for agent in (cold, warm):
        worker = agent.start("python", *command, workdir=tmp_path, env=env)
        agent.until(lambda agent=agent, worker=worker: worker in agent.processes._watched)
        assert agent.was_forked(worker) == (agent is warm)
        agent.until(lambda agent=agent, worker=worker: worker in agent.ends)
        assert agent.ends[worker].exit_code == 0, agent.log(worker)
        (line,) = agent.log(worker)
        outcomes.append(json.loads(line.removeprefix("o ")))
    assert outcomes[1] == outcomes[0]


@pytest.mark.parametrize("name", ENDS)
def test_a_forked_script_ends_as_an_executed_one_does(tmp_path: Path, cold: Agent, warm: Agent, name: str) -> None:
    (tmp_path / "end.py").write_text(ENDS[name] + "\n")
    ends = []
    for agent in (cold, warm):
        worker, end = agent.run("python3", "end.py", workdir=tmp_path, env={"TMPDIR": str(tmp_path)})
        stable = [re.sub(r"0x[0-9a-f]+", "0x", line) for line in agent.log(worker)]
        ends.append((end.exit_code, re.sub(r"0x[0-9a-f]+", "0x", end.reason), stable))
    assert ends[1] == ends[0]


@pytest.mark.parametrize(
    ("command", "workdir"),
    [(["nowhere.py"], "/"), (["-m", "no_such_module"], "/"), (["x.py"], "/nowhere"), (["x.py"], "/etc/passwd")],
)
def test_what_cannot_be_run_is_told_in_the_same_words(
    cold: Agent, warm: Agent, command: list[str], workdir: str
) -> None:
    ends = []
    for agent in (cold, warm):
        worker, end = agent.run("python", *command, workdir=workdir)
        ends.append((end.exit_code, end.reason, agent.log(worker)))
    assert ends[1] == ends[0]


def test_forked_workers_that_do_not_join_draw_different_random_numbers(tmp_path: Path, warm: Agent) -> None:
    text = "import random, numpy, torch, multiprocessing as m\n"
    text += "print(random.random(), numpy.random.rand(), torch.rand(1).item(), m.current_process().authkey.hex())"
    (tmp_path / "draw.py").write_text(text)
    first, second = (
        warm.log(warm.run("python", "draw.py", workdir=tmp_path, joins=False)[0])[0].split() for _ in range(2)
    )
    assert all(a != b for a, b in zip(first[1:], second[1:], strict=True))


def test_a_forked_worker_is_stopped_by_sigterm_and_dies_with_its_shim(tmp_path: Path, warm: Agent) -> None:
    (tmp_path / "wait.py").write_text("import time; print('up'); time.sleep(60)")
    stopped, orphan = (warm.start("python", "wait.py", workdir=tmp_path) for _ in range(2))
    records = [warm.record(worker) for worker in (stopped, orphan)]
    warm.until(lambda: warm.log(stopped) and warm.log(orphan))
    warm.processes.signal(stopped, StopSignal.TERMINATE)
    os.kill(records[1]["shim_pid"], signal.SIGKILL)
    warm.until(lambda: {stopped, orphan} <= set(warm.ends))
    assert warm.ends[stopped].reason == "killed by SIGTERM"
    assert warm.ends[orphan].exit_code is None
    warm.until(lambda: all(is_gone(record[name]) for record in records for name in ("pid", "shim_pid")))
    ours = [
        records[0]["pid"],
        records[0]["shim_pid"],
        records[1]["shim_pid"],
    ]  # another process adopted the orphan
    warm.until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ours))


def test_workers_outlive_the_warm_process_and_the_agent_and_another_agent_adopts_them(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time; print('up', flush=True)\nwhile True: time.sleep(60)")
    agent = Agent(tmp_path / "state", warm=True)
    zygote = agent.wait_until_warm()
    worker = agent.start("python", "wait.py", workdir=tmp_path)
    record = agent.record(worker)
    agent.until(lambda: agent.log(worker))
    os.kill(zygote, signal.SIGKILL)
    agent.until(lambda: agent.zygotes not in ([], [zygote]))  # a new warm process is made
    second = agent.zygotes[0]
    agent.processes.close()
    assert agent.warm is not None
    agent.warm.close()
    agent.tasks.close()
    agent.loop.close()
    assert is_gone(zygote)
    assert is_gone(second)
    heir = Agent(tmp_path / "state", warm=False)
    (adopted,) = heir.processes.adopt().running
    assert (adopted.job, adopted.worker, adopted.gpu) == (JOB, worker, 0)
    os.kill(record["pid"], signal.SIGKILL)
    heir.until(lambda: worker in heir.ends)
    assert heir.ends[worker].reason == "killed by SIGKILL"
    heir.close()


def test_down_finds_the_warm_process_and_its_forked_workers_without_any_record(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("import time; print('up'); time.sleep(60)")
    agent = Agent(tmp_path / "s1", warm=True)
    zygote = agent.wait_until_warm()
    record = agent.record(agent.start("python", "wait.py", workdir=tmp_path))
    for path in (tmp_path / "s1" / "jobs" / JOB).glob("*.json"):
        path.unlink()
    assert leftovers.anything_runs(tmp_path)
    assert leftovers.stop_everything(tmp_path, {}) == ()
    agent.until(lambda: all(is_gone(pid) for pid in (zygote, record["pid"], record["shim_pid"])))
    agent.close()


def test_a_wedged_warm_process_only_costs_its_worker_the_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticd.agent.forkserver.client.ANSWER_WITHIN_S", 1.0)
    (tmp_path / "count.py").write_text(f"open({str(tmp_path / 'runs')!r}, 'a').write('x')")
    agent = Agent(tmp_path / "state", warm=True)
    zygote = agent.wait_until_warm()
    os.kill(zygote, signal.SIGSTOP)
    worker = agent.start("python", "count.py", workdir=tmp_path)
    cancelled = agent.start("python", "count.py", workdir=tmp_path)
    assert isinstance(agent.processes.signal(cancelled, StopSignal.TERMINATE), ProcessFailed)
    agent.until(lambda: worker in agent.ends)
    assert agent.ends[worker].exit_code == 0
    assert (tmp_path / "runs").read_text() == "x"
    agent.until(lambda: is_gone(zygote))
    agent.close()


WAITS = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\nprint('hello')\n"


def test_workers_that_are_started_while_a_warm_process_loads_wait_for_it(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text(WAITS)
    agent = Agent(tmp_path / "state", warm=True)
    agent.until(lambda: agent.zygotes)
    workers = [agent.start("python", "hello.py", workdir=tmp_path) for _ in range(2)]
    cancelled = agent.start("python", "hello.py", workdir=tmp_path)
    agent.until(lambda: len(agent.warm._channels) == 3)  # type: ignore[union-attr]
    assert isinstance(agent.processes.signal(cancelled, StopSignal.TERMINATE), ProcessFailed)
    assert [agent.was_forked(worker) for worker in workers] == [True, True]
    (tmp_path / "go").touch()
    for worker in workers:
        agent.until(lambda worker=worker: worker in agent.ends)
        assert (agent.ends[worker].exit_code, agent.log(worker)) == (0, ["o hello"])
    assert agent.log(cancelled) == []
    agent.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_warm_process_that_never_has_loaded_only_costs_its_worker_the_advantage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: signal.Signals
) -> None:
    if how is signal.SIGSTOP:
        monkeypatch.setattr("elasticd.agent.forkserver.client.LOADED_WITHIN_S", 1.0)
    (tmp_path / "hello.py").write_text(WAITS)
    (tmp_path / "prelude.py").write_text("import time\ntime.sleep(3600)\n")
    monkeypatch.setattr("elasticd.agent.forkserver.client.PRELUDE", "prelude")
    agent = Agent(tmp_path / "state", warm=True, variables={"PYTHONPATH": str(tmp_path)})
    agent.until(lambda: agent.zygotes)
    worker = agent.start("python", "hello.py", workdir=tmp_path)
    agent.until(lambda: agent.warm._channels)  # type: ignore[union-attr]
    os.kill(agent.zygotes[0], how)
    assert not agent.was_forked(worker)
    (tmp_path / "go").touch()
    agent.until(lambda: worker in agent.ends)
    assert (agent.ends[worker].exit_code, agent.log(worker)) == (0, ["o hello"])
    agent.close()


DRAWS = """
import random
files = [f"image-{number:02d}.png" for number in range(40)]
random.shuffle(files)
import numpy, torch, json
sets = list(set(["cat", "dog", "bird", "fish", "horse", "cow"]))  # {"cat", …} would depend on what else is interned
print(json.dumps([files[:5], numpy.random.rand(), torch.rand(1).item(), torch.randperm(9).tolist(), sets]))
"""


def test_a_script_draws_the_same_before_it_joins_whether_its_process_was_forked_or_executed(
    cold: Agent, warm: Agent, tmp_path: Path
) -> None:
    (tmp_path / "draws.py").write_text(DRAWS)
    told = []
    for agent in (cold, cold, warm, warm):
        worker, end = agent.run("python", "draws.py", workdir=tmp_path)
        assert end.exit_code == 0, agent.log(worker)
        told.append(agent.log(worker))
    wrapped, end = cold.run("bash", "-c", f"{sys.executable} draws.py; true", workdir=tmp_path)
    told.append(cold.log(wrapped))
    assert len(told[0]) == 1
    assert told == [told[0]] * 5


@pytest.mark.cluster
def test_the_hash_seed_of_a_job_holds_in_a_process_that_is_forked_too(tmp_path: Path) -> None:
    (tmp_path / "sets.py").write_text("import sys; print(sys.flags.hash_randomization, list(set('abcde')))")
    agent = Agent(tmp_path / "state", warm=True)
    agent.wait_until_warm()
    env = {"PYTHONHASHSEED": "7"}
    first, _ = agent.run("python", "sets.py", workdir=tmp_path, env=env)
    agent.until(lambda: len(agent.zygotes) == 2 and all(each.watched for each in agent.warm._processes.values()))  # type: ignore[union-attr]
    second = agent.start("python", "sets.py", workdir=tmp_path, env=env)
    assert agent.was_forked(second)
    agent.until(lambda: second in agent.ends)
    other, _ = agent.run("python", "sets.py", workdir=tmp_path)
    assert agent.log(first) == agent.log(second) != agent.log(other)
    agent.close()


@pytest.mark.cluster
def test_a_worker_with_other_import_time_variables_starts_cold_and_the_next_one_from_a_process_of_their_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "threads.py").write_text(
        "import os, torch; print(os.environ['OMP_NUM_THREADS'], torch.get_num_threads())"
    )
    agent = Agent(tmp_path / "state", warm=True)
    agent.wait_until_warm()
    env = {"OMP_NUM_THREADS": "2"}
    worker = agent.start("python", "threads.py", workdir=tmp_path, env=env)
    assert not agent.was_forked(worker)
    agent.until(lambda: worker in agent.ends)
    assert agent.warm is not None
    agent.until(lambda: [len(process.watched) > 0 for process in agent.warm._processes.values()] == [True, True])
    forked = agent.start("python", "threads.py", workdir=tmp_path, env=env)
    agent.until(lambda: forked in agent.processes._watched)
    assert agent.was_forked(forked)
    agent.until(lambda: forked in agent.ends)
    assert agent.log(forked) == agent.log(worker) == ["o 2 2"]
    agent.close()


@pytest.mark.cluster
def test_an_interpreter_without_torch_is_found_to_be_of_no_use_once(tmp_path: Path) -> None:
    (tmp_path / "bare" / "bin").mkdir(parents=True)
    (tmp_path / "bare" / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (tmp_path / "bare" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
    (tmp_path / "hello.py").write_text("print('hello')")
    agent = Agent(tmp_path / "state", warm=True)
    agent.wait_until_warm()
    command = [str(tmp_path / "bare" / "bin" / "python"), "hello.py"]
    worker, _ = agent.run(*command, workdir=tmp_path)
    assert agent.log(worker) == ["o hello"]
    agent.until(lambda: len(agent.zygotes) == 1)
    for _ in range(2):
        worker, end = agent.run(*command, workdir=tmp_path)
        assert end.exit_code == 0
    agent.close()


PRELUDES = {
    "it has 2 threads": "import threading, time\n"
    "def prepare(): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n",
    "RuntimeError: broken": "def prepare(): raise RuntimeError('broken')\n",
    "ModuleNotFoundError": "import no_such_library\n",
}


@pytest.mark.parametrize("problem", PRELUDES)
def test_a_process_that_nothing_may_be_forked_from_is_not_made_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: str
) -> None:
    (tmp_path / "prelude.py").write_text(PRELUDES[problem])
    monkeypatch.setattr("elasticd.agent.forkserver.client.PRELUDE", "prelude")
    caplog.set_level("INFO")
    agent = Agent(tmp_path / "state", warm=True, variables={"PYTHONPATH": str(tmp_path)})
    agent.until(lambda: problem in caplog.text)
    assert agent.zygotes == []
    worker, end = agent.run("python", "-c", "print('hello')")
    assert (end.exit_code, agent.log(worker), agent.zygotes) == (0, ["o hello"], [])
    agent.close()


CULPRITS = {
    "CUDA has been started in it, by the import of guilty.inner": {
        "guilty/__init__.py": "import innocent\nfrom . import inner\nimport late\n",
        "guilty/inner.py": "import torch.cuda\ntorch.cuda.start()\nimport innocent\nimport late\n",
    },
    "by the import of guilty\n": {"guilty.py": "import torch.cuda\nimport innocent\ntorch.cuda.start()\nimport late\n"},
    "by the import of prelude.prepare": {"guilty.py": "", "prepare.py": "import torch.cuda\ntorch.cuda.start()\n"},
    "by the import of what Python itself imports at its start": {
        "guilty.py": "",
        "sitecustomize.py": "import torch.cuda\ntorch.cuda.start()\n",
    },
}


@pytest.mark.parametrize("said", CULPRITS)
def test_the_import_that_starts_cuda_is_named_and_nothing_is_forked_from_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, said: str
) -> None:
    """A stand-in for torch can start "CUDA" where there is no GPU."""
    files = {
        "torch/__init__.py": "",
        "torch/cuda.py": "on = []\ndef start(): on.append(1)\ndef is_initialized(): return bool(on)\n",
        "innocent.py": "",
        "late.py": "",
        "prepare.py": "",
        "prelude.py": "import guilty\ndef prepare(): exec(open(__file__.replace('prelude', 'prepare')).read())\n",
        **CULPRITS[said],
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("elasticd.agent.forkserver.client.PRELUDE", "prelude")
    caplog.set_level("INFO")
    agent = Agent(tmp_path / "state", warm=True, variables={"PYTHONPATH": str(tmp_path)})
    agent.until(lambda: "CUDA has been started in it" in caplog.text)
    assert said in caplog.text
    worker, end = agent.run("python", "-c", "print('hello')")
    assert (end.exit_code, agent.log(worker), agent.zygotes) == (0, ["o hello"], [])
    agent.close()


def test_a_process_that_gets_a_second_thread_later_ends_and_its_worker_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prelude.py").write_text(
        "import signal, threading, time\n"
        "def grow(*_): threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        "def prepare(): signal.signal(signal.SIGUSR1, grow)\n"
    )
    monkeypatch.setattr("elasticd.agent.forkserver.client.PRELUDE", "prelude")
    (tmp_path / "hello.py").write_text("print('hello')")
    agent = Agent(tmp_path / "state", warm=True, variables={"PYTHONPATH": str(tmp_path)})
    zygote = agent.wait_until_warm()
    os.kill(zygote, signal.SIGUSR1)
    agent.until(lambda: len(os.listdir(f"/proc/{zygote}/task")) == 2)
    worker, end = agent.run("python", "hello.py", workdir=tmp_path)
    assert (end.exit_code, agent.log(worker)) == (0, ["o hello"])
    assert is_gone(zygote)
    agent.close()


def test_a_process_is_made_anew_when_a_package_has_been_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "prelude.py").write_text("def prepare(): pass\ndef renew(): pass\n")
    monkeypatch.setattr("elasticd.agent.forkserver.client.PRELUDE", "prelude")
    (tmp_path / "hello.py").write_text("print('hello')")
    agent = Agent(tmp_path / "state", warm=True, variables={"PYTHONPATH": str(tmp_path / "site")})
    zygote = agent.wait_until_warm()
    (tmp_path / "site" / "torch-99.dist-info").mkdir()
    worker, _ = agent.run("python", "hello.py", workdir=tmp_path)
    assert agent.log(worker) == ["o hello"]
    assert agent.wait_until_warm() != zygote
    assert is_gone(zygote)
    agent.close()
