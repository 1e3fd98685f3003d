"""`elasticctl check` on a script of the corpus: how many of the cluster's findings it makes without a cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .index import BY_NAME

LIMIT_S = 900.0


@dataclass(frozen=True)
class Check:
    """Result of the command for one script."""

    script: str
    verdict: str  # "same bits", "differs", "refused" or "could not run"
    named: bool  # a finding contains the name that the index expects
    seconds: float

    @property
    def found(self) -> bool:
        """Whether the command says that the script is not elastic as written. "could not run" is no such finding."""
        return self.verdict in ("differs", "refused")


def check(work: str, name: str) -> Check:
    """Run the command on the script as written. Raises CalledProcessError if the command itself fails."""
    script = BY_NAME[name]
    directory = Path(work, f"{name}-desk")
    directory.mkdir(parents=True)
    script.write(directory, fixed=False)
    command = [str(Path(sys.executable).with_name("elasticctl")), "check", "--json", f"{name}.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode not in (0, 1, 2):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    (directory / "check.json").write_text(done.stdout)
    said = json.loads(done.stdout)
    named = bool(script.variable) and script.variable in json.dumps(said.get("findings", []) or said.get("error", ""))
    return Check(name, said["verdict"], named, said["took_s"])
