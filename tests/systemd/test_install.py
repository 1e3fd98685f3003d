"""`make install` installs files that all users of a machine can run, and keeps an operator's files."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Install = Callable[..., str]

ROOT = Path(__file__).parents[2]
UNITS = sorted(path.name for path in (ROOT / "systemd").glob("*.service"))

pytestmark = pytest.mark.cluster  # each installs packages


def test_all_users_can_run_what_is_installed(stage: Path) -> None:
    private = [
        path
        for path in [*stage.glob("opt/elasticctl"), *stage.glob("opt/elasticctl/**/*"), *stage.glob("usr/local/**/*")]
        if not path.is_symlink() and not path.stat().st_mode & 0o004
    ]
    assert not private
    assert (stage / "usr/local/bin/elasticctl").readlink() == Path("/opt/elasticctl/bin/elasticctl")
    assert (stage / "opt/elasticctl/bin/elasticctl").read_text().startswith("#!/opt/elasticctl/bin/python")
    python = stage / "opt/elasticctl/bin/python"
    version = subprocess.run(
        [python, "-I", "-m", "elasticd.ctl.main", "version"], capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith("elasticctl ")


def test_nothing_in_it_names_where_it_was_built(stage: Path) -> None:
    places = [
        *stage.glob("opt/elasticctl/bin/*"),
        *stage.glob("usr/local/lib/**/*"),
        stage / "opt/elasticctl/pyvenv.cfg",
    ]
    found = [path for path in places if path.is_file() and str(stage) in path.read_bytes().decode(errors="replace")]
    assert not found


def test_units_and_the_commented_configuration_are_there(stage: Path) -> None:
    for name in UNITS:
        assert (stage / "usr/local/lib/systemd/system" / name).read_text() == (ROOT / "systemd" / name).read_text()
    for name in ("agent.yaml", "policies/max-min.yaml"):
        assert (stage / "etc/elasticctl" / name).read_text() == (ROOT / "configs" / name).read_text()
    commented = (ROOT / "configs/controller.yaml").read_text()
    installed = (stage / "etc/elasticctl/controller.yaml").read_text()
    keys = re.compile(r"^(# )?keys_directory: .*$", re.MULTILINE)
    assert keys.sub("", installed) == keys.sub("", commented)
    assert "\nkeys_directory: /etc/elasticctl/keys\n" in installed, "where `elasticctl keys` keeps them"
    assert (stage / "usr/local/lib/sysusers.d/elasticctl.conf").exists()
    assert (stage / "usr/local/lib/tmpfiles.d/elasticctl.conf").exists()


def test_an_operators_configuration_survives_upgrades_and_removal(install: Install, tmp_path: Path) -> None:
    own = tmp_path / "etc/elasticctl/controller.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("cluster: ours\n")
    for _ in range(2):
        said = install(tmp_path, PREFIX="/opt/lab/elasticctl")
    assert "kept" in said
    assert own.read_text() == "cluster: ours\n"
    unit = (tmp_path / "usr/local/lib/systemd/system/elasticctl-controller.service").read_text()
    assert "ExecStart=/opt/lab/elasticctl/bin/python " in unit

    install(tmp_path, "uninstall", PREFIX="/opt/lab/elasticctl")
    assert own.read_text() == "cluster: ours\n"
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()}
    assert {path for path in left if not path.startswith("etc/elasticctl/")} == set()


@pytest.mark.parametrize("prefix", ["/usr/local", "/opt", "relative", "/opt/../etc", "/opt/x y"])
def test_a_prefix_that_is_not_for_elasticctl_alone_is_refused(install: Install, tmp_path: Path, prefix: str) -> None:
    with pytest.raises(AssertionError, match="PREFIX="):
        install(tmp_path, PREFIX=prefix)
    assert not list(tmp_path.iterdir())


def test_a_directory_with_other_things_is_left_alone(install: Install, tmp_path: Path) -> None:
    (tmp_path / "opt/elasticctl").mkdir(parents=True)
    (tmp_path / "opt/elasticctl/thesis.tex").write_text("years of work")
    for target in ("install", "uninstall"):
        with pytest.raises(AssertionError):
            install(tmp_path, target)
    assert (tmp_path / "opt/elasticctl/thesis.tex").read_text() == "years of work"
