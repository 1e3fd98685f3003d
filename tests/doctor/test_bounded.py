"""A check that hangs or dies does not stop doctor; its screen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from elasticd.ctl import bounded
from elasticd.ctl.doctor import command, screen
from elasticd.ctl.doctor.checks import Check, Finding, Outcome, absent, failure, ok, warning
from elasticd.ctl.doctor.crowd import Crowd, crowd
from elasticd.ctl.doctor.screen import Result
from elasticd.ctl.doctor.targets import Subject


def test_a_check_that_hangs_is_a_finding_and_what_it_has_started_ends_with_it(bench: Any, tmp_path: Path) -> None:
    note = tmp_path / "pid"

    def hang(target: Any) -> Finding:
        note.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
        while True:
            signal.pause()

    check = Check("shares", Subject.DESK, "the share hangs", "mount it again", hang, limit_s=5.0)
    other = Check("other", Subject.DESK, "", "", lambda target: ok("well"))
    pairs = [(bench.desk(), check), (bench.desk(), other)]
    results = list(command.examined(pairs, lambda: Crowd(threads=1, processors=1)))
    assert [result.finding.outcome for result in results] == [Outcome.FAILURE, Outcome.OK]
    assert "no end within 5 s" in results[0].finding.found
    assert "mount it again" in results[0].finding.remedy
    deadline = time.monotonic() + 120
    while Path(f"/proc/{note.read_text()}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{note.read_text()}").exists()


def test_on_a_crowded_machine_what_does_not_end_or_fails_late_says_nothing(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LATE", 0.005)  # long before the limit on any machine

    def never(target: Any) -> Finding:
        while True:
            signal.pause()

    def late(target: Any) -> Finding:
        time.sleep(0.6)
        return failure("it has not loaded torch", "install torch once more")

    def certain(target: Any) -> Finding:
        time.sleep(0.6)
        return failure("line 1: expected a number", "mend it", certain=True)

    checks = [
        Check("hangs", Subject.DESK, "the share hangs", "mount it again", never, limit_s=0.5),
        Check("torch", Subject.DESK, "", "", late, limit_s=100.0),
        Check("certain", Subject.DESK, "", "", certain, limit_s=100.0),
        Check("file", Subject.DESK, "", "", lambda target: failure("it is not there", "make it"), limit_s=100_000.0),
    ]
    pairs = [(bench.desk(), check) for check in checks]
    results = list(command.examined(pairs, lambda: Crowd(threads=50, processors=2)))
    assert [result.finding.outcome for result in results] == [Outcome.WARNING] * 2 + [Outcome.FAILURE] * 2
    for result in results[:2]:
        assert result.finding.found.startswith("too busy to tell: 50 threads want to run on 2 processors; ")
        assert "install" not in result.finding.remedy
    assert "no end within 3 s" in results[0].finding.found, "six times as patient"
    quiet = list(command.examined(pairs[1:2], lambda: Crowd(threads=3, processors=2)))
    assert quiet[0].finding.outcome is Outcome.FAILURE


def test_how_many_threads_want_to_run_is_read_from_the_kernel(tmp_path: Path) -> None:
    told = tmp_path / "loadavg"
    told.write_text("50.11 31.00 12.50 61/1234 99\n")
    assert crowd(told).threads == 61
    told.write_text("nonsense")
    assert not crowd(told).crowded
    assert crowd().processors >= 1


def test_what_is_not_ok_stands_first(bench: Any) -> None:
    found = [ok("a"), failure("b", "mend"), absent("c"), warning("d", "mend"), ok("e")]
    results = [
        Result(bench.desk(), Check(one.found, Subject.DESK, "", "", lambda target: ok("")), one, 0.1) for one in found
    ]
    assert [result.check.name for result in screen.in_order(results)] == ["b", "d", "a", "c", "e"]


def test_a_check_that_crashes_or_raises_is_a_finding() -> None:
    works = [
        bounded.Work(lambda: os.kill(os.getpid(), signal.SIGKILL), 20.0),
        bounded.Work(lambda: 1 // 0, 20.0),
        bounded.Work(lambda: os._exit(3), 20.0),
        bounded.Work(lambda: {"a": 1}, 20.0),
    ]
    found = list(bounded.in_order(works))
    assert [each.error for each in found] == [
        "ended by SIGKILL",
        "ZeroDivisionError: integer division or modulo by zero",
        "ended without an answer",
        "",
    ]
    assert found[3].answer == {"a": 1}


def test_what_only_root_may_see_does_not_apply(bench: Any) -> None:
    def closed(target: Any) -> Finding:
        raise PermissionError(13, "Permission denied", "/root/secret")

    (result,) = command.examined([(bench.desk(), Check("secret", Subject.DESK, "", "", closed))])
    assert result.finding.outcome is Outcome.ABSENT
    assert "root sees this" in result.finding.found


def test_lines_fit_terminals_of_any_width(bench: Any) -> None:
    finding = failure(
        f"others may write to {'/a-path' * 9}, and more than one thing is wrong with it", "chmod go-w that"
    )
    check = Check("checkpoints", Subject.DESK, "", "", lambda target: finding)
    for width in (40, 50, 80, 120):
        lines = list(screen.lines_of(Result(bench.desk(), check, finding, 0.1), 14, width, False))
        assert all(len(line) <= width or "/a-path" * 9 in line for line in lines), lines
        assert "/a-path" * 9 + "," in " ".join(lines).split(), "a path stays whole"
        assert "-> chmod go-w that" in " ".join(" ".join(lines).split())


def test_programs_get_one_document_and_exit_code_1(bench: Any) -> None:
    text = bench.run(bench.file("agent", key_file="/nowhere"), "--json", "--only", "key", "--only", "packages")
    found = json.loads(text)
    assert [(each["subject"], each["name"], each["outcome"]) for each in found["checks"]] == [
        ("server", "key", "failure"),
        ("desk", "packages", "ok"),
        ("desk", "key", "not applicable"),
    ]
    assert (found["failures"], found["warnings"]) == (1, 0)
    assert found["checks"][0]["remedy"]


def test_unknown_checks_and_files_are_told(bench: Any) -> None:
    assert "shm is meant?" in bench.run("--only", "shmm", code=2)
    assert "there is nothing here that it looks at" in bench.run("--only", "shm", code=2)
    assert "is the file of no daemon" in bench.run("/etc/elasticctl/cluster.yaml", code=2)


def test_a_daemon_with_a_wrong_configuration_has_one_failure(bench: Any) -> None:
    text = bench.run(bench.file("agent", adress="10.0.0.1"), "--only", "configuration", "--only", "state")
    assert "adress: is unknown; address is meant?" in text
    assert "1 failure (configuration)" in text


def test_each_check_has_a_name_of_its_own_at_its_place() -> None:
    checks = command.all_checks()
    assert len({(check.subject, check.name) for check in checks}) == len(checks)
