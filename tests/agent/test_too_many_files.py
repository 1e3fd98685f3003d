"""An agent at its limit of open files continues: only starts fail, by the server's fault."""

from __future__ import annotations

import errno
import os
import socket
import sys
from pathlib import Path

import pytest

from elasticd.agent.accounts import own_account
from elasticd.agent.disk import Failed
from elasticd.agent.forkserver import client
from elasticd.agent.interpreters import located
from elasticd.agent.warm_key import key_of


def refuse(*arguments: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_warm_process_that_cannot_be_connected_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(located(sys.executable), {})
    for module, name in ((socket, "socketpair"), (os, "pipe2")):
        with monkeypatch.context() as patched:
            patched.setattr(module, name, refuse)
            assert client._start(tmp_path, own_account(), sys.executable, key, None, "warm") == Failed(
                "Too many open files"
            )
