"""A notice by a command of the operator's, with real processes: it comes, although the controller dies meanwhile."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from elasticd.protocol.model import JobPhase, Notify

pytestmark = pytest.mark.cluster

MakeCluster = Callable[..., Any]
TELL = """#!{python}
import json, os, pathlib, sys
if pathlib.Path({away!r}).exists():
    sys.exit("not now")
with open({out!r}, "a") as out:
    print(json.dumps([sys.argv[1:], os.environ["ELASTICCTL_JOB"], os.environ["ELASTICCTL_EVENT"]]), file=out)
"""


def test_a_notice_comes_although_the_controller_dies_before_it_is_sent(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    out, away, command = tmp_path / "told", tmp_path / "away", tmp_path / "tell"
    command.write_text(TELL.format(python=sys.executable, out=str(out), away=str(away)))
    command.chmod(0o755)
    cluster = make_cluster(servers=1, slots=2, notify={"command": [str(command), "--lab"]})
    script = tmp_path / "short.py"
    script.write_text("raise SystemExit(3)")

    def told() -> list[Any]:
        return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []

    first = cluster.submit(gpus=(1, 1), virtual_workers=1, script=script, restarts=0, notify=(Notify.FAIL,))
    cluster.until("the first notice", told)
    assert told() == [[["--lab"], first, "failed"]]
    away.touch()  # the command fails from now on
    second = cluster.submit(gpus=(1, 1), virtual_workers=1, script=script, restarts=0, notify=(Notify.END,))
    assert cluster.until_over(second).phase is JobPhase.FAILED
    cluster.kill("controller")
    away.unlink()
    cluster.start("controller")
    cluster.until("the second notice", lambda: len(told()) > 1)
    assert told()[1:] == [[["--lab"], second, "failed"]]
