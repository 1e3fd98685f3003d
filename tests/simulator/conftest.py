"""`elasticctl simulate` in the tests' process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticd.ctl.main import main

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def simulate_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process and in an empty directory; it fails the test unless it ends with `code`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["elasticctl", "simulate", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        done = subprocess.CompletedProcess(arguments, int(ended.value.code or 0), captured.out, captured.err)
        assert done.returncode == code, captured.err
        assert "Traceback" not in captured.err + captured.out
        return done

    return call
