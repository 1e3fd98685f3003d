"""The units are valid, and no more exposed than is explained."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNITS = sorted(path.name for path in (ROOT / "systemd").glob("*.service"))

# `systemd-analyze security` rates the service's exposure from 0 (none) to 10 (all); it must not rise without a reason.
MOST_EXPOSURE = {"elasticctl-controller.service": 1.4, "elasticctl-agent.service": 4.3}
LIMIT_OF_THE_CONTROLLER = 2.0


def security(unit: Path, *options: str) -> str:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", *options, str(unit)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def exposure(unit: Path) -> float:
    found = re.search(r"exposure level for \S+: ([\d.]+)", security(unit))
    assert found
    return float(found[1])


def remaining(unit: Path) -> set[str]:
    """Settings that leave the service exposed."""
    lines = json.loads(security(unit, "--json=short"))
    return {line["json_field"] for line in lines if float(line["exposure"] or 0) > 0}


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_has_no_mistakes(units: Path, name: str) -> None:
    command = ["systemd-analyze", "verify", "--recursive-errors=yes", "--man=no", str(units / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if "elasticctl" in line]
    assert not ours
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", MOST_EXPOSURE)
def test_a_service_may_do_no_more_than_before(units: Path, name: str) -> None:
    assert exposure(units / name) <= MOST_EXPOSURE[name]


def test_the_controller_may_do_next_to_nothing() -> None:
    assert MOST_EXPOSURE["elasticctl-controller.service"] <= LIMIT_OF_THE_CONTROLLER


@pytest.mark.parametrize("name", MOST_EXPOSURE)
def test_what_a_service_may_do_is_explained_to_operators(units: Path, name: str) -> None:
    page = (ROOT / "docs/operators.md").read_text()
    daemon = name.removeprefix("elasticctl-").removesuffix(".service")
    table = page.split(f"What the {daemon} may do", 1)[1].split("\n\n| ", 1)[1].split("\n\n", 1)[0]
    explained = {word for row in table.splitlines() for word in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert remaining(units / name) - explained == set()
    assert explained - remaining(units / name) == set()
