"""`make verify-stops`: a training that is paused, resumed, cancelled and gone on from, beside an undisturbed one.

    python -m verification.stops [--epochs N] [--record FILE]

A real cluster of two servers with two CPU slots each trains `examples/digits/train.py` twice. The commands and all that they
print are the output, as on a terminal; `--record` also writes them to a file. The exit code is 1 unless the SHA-256 of both
models is the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "examples/digits/train.py"
COMMAND_TIMEOUT_S = 600.0
STEP_TIMEOUT_S = 300.0
LOOK_INTERVAL_S = 0.2
# Parts of the steps after which the job is paused, and cancelled
PAUSED_AT, CANCELLED_AT = 0.25, 0.6


class Failed(Exception):
    """A command or a wait has failed, which the message names."""


class Terminal:
    """A terminal in the repository's root, with the environment of this interpreter; keeps what is typed and printed."""

    def __init__(self, cluster: Path) -> None:
        self.lines: list[str] = []
        own = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', os.defpath)}"
        self._environment = {**own, "PATH": path, "ELASTICCTL_DIR": str(cluster)}

    def type(self, command: str) -> str:
        """Run a command, show it with all that it prints, and return its output. Raises Failed."""
        self.show(f"$ {command}")
        done = self._run(shlex.split(command))
        for line in (done.stdout + done.stderr).splitlines():
            self.show(line)
        if done.returncode:
            raise Failed(f"`{command}` ends with code {done.returncode}")
        return done.stdout

    def show(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def until_step(self, job: str, part: float) -> None:
        """Wait until a job has done this part of its steps. Raises Failed."""
        until_s = time.monotonic() + STEP_TIMEOUT_S
        while True:
            view = json.loads(self._run(["elasticctl", "status", job, "--json"]).stdout or "{}")
            if view.get("total_steps") and (view.get("step") or 0) >= part * view["total_steps"]:
                return
            if time.monotonic() > until_s or view.get("phase") in ("finished", "failed", "cancelled"):
                raise Failed(f"{job} is {view.get('phase')} at step {view.get('step')} of {view.get('total_steps')}")
            time.sleep(LOOK_INTERVAL_S)

    def _run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )


def play(terminal: Terminal, out: Path, epochs: int) -> bool:
    """Train undisturbed, then with a pause and a cancellation. Returns whether the models are the same. Raises Failed."""
    alone, stopped = out / "alone" / "digits.pt", out / "stopped" / "digits.pt"
    train = f"-- python {SCRIPT} --epochs {epochs} --output"
    terminal.type("elasticctl up --servers 2 --gpus 2")
    terminal.type(f"elasticctl submit --name alone --gpus 1:4 --virtual-workers 4 --wait {train} {alone}")
    job = terminal.type(f"elasticctl submit --name stopped --gpus 1:4 --virtual-workers 4 {train} {stopped}").strip()
    terminal.until_step(job, PAUSED_AT)
    terminal.type(f"elasticctl pause {job}")
    terminal.type("elasticctl status")
    terminal.type(f"elasticctl resume {job}")
    terminal.until_step(job, CANCELLED_AT)
    terminal.type(f"elasticctl cancel {job}")
    terminal.type(f"elasticctl submit --resume {job} --gpus 1:2 --wait")
    terminal.type("elasticctl history --format job,state,elapsed_s,gpu_hours,peak_gpus,exit_code")
    sums = {hashlib.sha256(file.read_bytes()).hexdigest() for file in (alone, stopped)}
    terminal.type(f"sha256sum {alone} {stopped}")
    return len(sums) == 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m verification.stops", description=__doc__)
    parser.add_argument("--epochs", type=int, default=60, help="of each training")
    parser.add_argument("--record", type=Path, help="a file for the commands and what they print")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="elasticctl-stops-") as directory:
        terminal = Terminal(Path(directory) / "cluster")
        same = False
        try:
            try:
                same = play(terminal, Path(directory), options.epochs)
            finally:
                terminal.type("elasticctl down --purge --yes")
        except Failed as error:
            print(f"failed: {error}", file=sys.stderr)
        text = "\n".join(terminal.lines).replace(directory, "/tmp/stops")
    if options.record is not None:
        options.record.write_text(text + "\n")
    print("the models are the same" if same else "the models are NOT the same")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
