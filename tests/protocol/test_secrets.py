"""Files with secrets, and the names of their variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticd.controller.requests.validation import refusal
from elasticd.ctl.jobdocument import text_of
from elasticd.ctl.jobfile import Overrides, build
from elasticd.protocol.errors import UserError
from elasticd.protocol.limits import MAX_SECRET_BYTES
from elasticd.protocol.model import GpuRange, JobSpec
from elasticd.protocol.secrets import read

ENVIRON = {"PATH": "/usr/bin:/bin"}


def test_line_ends_at_the_end_are_not_of_the_secret(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one\ntwo\n\n")
    assert read(str(tmp_path / "a")) == "one\ntwo"


def test_what_can_be_no_variable_is_refused_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    for content, words in (
        (b"\xff", "not UTF-8"),
        (b"a\0", "NUL"),
        (b"x" * (MAX_SECRET_BYTES + 1), "more than 64 KiB"),
    ):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(ValueError, match=words):
            read(str(tmp_path / "a"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a plain file"):
        read(str(tmp_path / "pipe"))


def test_only_the_path_of_a_secret_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hidden")
    (tmp_path / "job.yaml").write_text("command: sleep 1\nsecrets: {TOKEN: token}\n")
    (tmp_path / "elsewhere").mkdir()
    spec = build(tmp_path / "job.yaml", Overrides(), tmp_path / "elsewhere", ENVIRON)
    assert spec.secrets == {"TOKEN": str(tmp_path / "token")}
    assert "hidden" not in text_of(spec)
    command = ("sleep", "1")
    assert build(None, Overrides(secrets=("A=token",), command=command), tmp_path, ENVIRON).secrets.keys() == {"A"}
    for option, words in (
        ("A=absent", "--secret A: .*absent cannot be read: No such file"),
        ("A", "must be NAME=FILE"),
        ("1=token", "is not a name of a variable"),
        ("ELASTICD_KEY=token", "is set by the cluster"),
        ("PATH=token", "PATH is set as a variable, too"),
        ("A=", "is not the path of a file"),
    ):
        with pytest.raises(UserError, match=words):
            build(None, Overrides(secrets=(option,), command=command), tmp_path, ENVIRON)


MANY = {f"A{number}": "/a" for number in range(65)}
WRONG = ({"A": "relative"}, {"1": "/a"}, {"ELASTICD_KEY": "/a"}, {"A": "/a\0"}, {"SET": "/a"}, MANY)


@pytest.mark.parametrize("secrets", WRONG)
def test_the_controller_refuses_what_no_client_sends(secrets: dict[str, str]) -> None:
    spec = JobSpec(name="job", command=("true",), gpus=GpuRange(min=1, max=1), virtual_workers=1, workdir="/",
                   env={"SET": "x"}, secrets=secrets)  # fmt: skip
    assert refusal(spec).startswith("secrets")
