"""`elasticctl run --pty bash`: a job for a shell at this terminal.

The job's command waits on its server until the shell runs beside it (`exec`), and ends when the shell ends. The shell
also ends if this client, its network or the controller is lost, since the agent then sends SIGHUP. So no GPU is held
for an abandoned shell. The command finds the shell by a file of a random name in the job's directory for temporary
files: its first line is the process number of the shell.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..protocol.errors import ElasticError, RequestRefused, UserError
from ..protocol.messages import Cancel, Cancelled
from ..protocol.model import JobId, JobPhase, JobSpec, Processes
from . import render
from .context import say

if TYPE_CHECKING:
    from .context import Context

ATTACHED_WITHIN_S = 300  # the job's command gives up if no shell was started by then
LOOK_S = 0.3
FILE = '"${TMPDIR:-/tmp}/elasticctl-shell-$1"'
WAIT = f"""f={FILE}; n=0
until [ -s "$f" ]; do
  n=$((n + 1))
  if [ "$n" -gt {ATTACHED_WITHIN_S} ]; then echo "no shell was attached in {ATTACHED_WITHIN_S} s" >&2; exit 1; fi
  sleep 1
done
read -r pid < "$f"
while kill -0 "$pid" 2>/dev/null; do sleep 1; done
code=129
if [ -s "$f.end" ]; then read -r code < "$f.end"; else echo "the shell was cut off" >&2; fi
rm -f "$f" "$f.end"
exit "$code"
"""
BEGIN = f"""f={FILE}; shift 1
set -C; umask 077
echo $$ > "$f" || exit 1
"$@"
code=$?
echo "$code" > "$f.end"
exit "$code"
"""


class Shell:
    """A shell, or another command, that is to run in a job of its own at this terminal."""

    def __init__(self, shared: Context) -> None:
        self._shared = shared
        self._token = secrets.token_hex(16)
        self._command: tuple[str, ...] = ()

    def job(self, built: JobSpec) -> JobSpec:
        """Return the job that waits for the command of the job `built`. Raises UserError if such a job is
        impossible."""
        gpus = built.gpus
        if gpus.min != gpus.max:
            raise UserError(f"run --pty: say how many GPUs, not {gpus.min} to {gpus.max}: a shell is not resized")
        if built.gpus_per_server not in (None, gpus.max):
            raise UserError("run --pty: the GPUs of a shell are on one server: leave --gpus-per-server out")
        if built.image:
            raise UserError("run --pty: a shell runs on the server itself: leave --image out")
        if built.array is not None or built.resume is not None:
            raise UserError("run --pty: neither an array nor a checkpoint to go on from")
        self._command = built.command
        return replace(
            built,
            command=("/bin/sh", "-c", WAIT, "elasticctl-shell", self._token),
            processes=Processes.PER_SERVER,
            gpus_per_server=gpus.max,
            restarts=0,
        )

    def attach(self, job: JobId) -> int:
        """Wait until the job runs, run the shell at this terminal, and return the exit code of the shell."""
        from .exec import converse

        words = ("/bin/sh", "-c", BEGIN, "elasticctl-shell", self._token, *self._command)
        try:
            self._until_it_runs(job)
            return converse(self._shared, job, words)
        except (ElasticError, KeyboardInterrupt):
            with contextlib.suppress(ElasticError):
                self._shared.ask(Cancel(job=job), Cancelled)
                say(f"elasticctl: {job} is cancelled")
            raise

    def _until_it_runs(self, job: JobId) -> None:
        shown = ""
        while (view := self._shared.job(job)).phase is not JobPhase.RUNNING:
            if view.phase.final:
                raise RequestRefused(f"{job} is over before it had a shell: {render.verdict(view)}")
            if view.phase is JobPhase.PENDING and view.reason and view.reason != shown:
                shown = view.reason
                say(f"elasticctl: {job} waits: {render.printable(shown)}")
            time.sleep(LOOK_S)
