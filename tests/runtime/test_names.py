"""The package, importable under the name of its distribution."""

from __future__ import annotations

import subprocess
import sys

ALIAS = """
import elasticctl as elastic
from elasticctl.simulator import traces
from elasticctl.protocol.errors import UserError
import elasticd, elasticd.protocol.errors, elasticd.simulator.traces
assert elastic is elasticd
assert traces is elasticd.simulator.traces
assert UserError is elasticd.protocol.errors.UserError
assert traces.__spec__.name == traces.__name__ == "elasticd.simulator.traces"
assert elastic.join.__module__ == "elasticd.worker.api"
try:
    import elasticctl.nothing
except ModuleNotFoundError as error:
    print(error)
"""


def test_both_names_give_the_same_modules_and_classes() -> None:
    done = subprocess.run([sys.executable, "-c", ALIAS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "No module named 'elasticd.nothing'\n"
