"""Switching a thread to a user's account for a moment: a failure on the way never leaves it half switched."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import textwrap

import pytest

from elasticd.agent import accounts

from .accounts_stories import ALICE, only_root, uid

pytestmark = only_root

CAP_SETGID, CAP_SETUID = 6, 7
PR_CAPBSET_DROP = 24

AROUND = """
import ctypes, os, struct, threading
from elasticd.agent import accounts
from elasticd.agent.accounts import Account, acting_as

alice = Account("alice", {uid}, {uid}, ({uid}, 7), "/")

def rights():
    with open(f"/proc/self/task/{{threading.get_native_id()}}/status") as file:
        return [line.split() for line in file if line.startswith(("Uid:", "Gid:", "Groups:", "CapEff:"))]

def lose(capability):
    "This thread alone loses it for good."
    library = ctypes.CDLL(None, use_errno=True)
    header = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0))
    data = ctypes.create_string_buffer(24)
    assert library.capget(header, data) == 0
    words = list(struct.unpack("6I", data.raw))
    words = [word & ~(1 << capability) if at < 3 else word for at, word in enumerate(words)]
    assert library.capset(header, ctypes.create_string_buffer(struct.pack("6I", *words))) == 0, ctypes.get_errno()

def seen(work):
    "What comes of it in a thread of its own."
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]
"""


def in_an_agent(code: str, without: int | None = None) -> subprocess.CompletedProcess[str]:
    """Output of `code` in a root process, which may lack a capability, as a service may."""

    def before() -> None:
        if without is not None:
            ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, without, 0, 0, 0)

    source = AROUND.format(uid=uid(ALICE)) + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", source], preexec_fn=before, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("without", [CAP_SETGID, CAP_SETUID], ids=["at the groups", "at the user"])
def test_a_thread_that_cannot_become_a_user_is_whole_again(without: int) -> None:
    """When the switch fails, the user, the groups and the effective group are already the user's."""
    done = in_an_agent(
        """
        def work():
            before = rights()
            try:
                with acting_as(alice):
                    return "it has become him"
            except OSError as error:
                return error.strerror, rights() == before, rights()
        refused, whole, now = seen(work)
        print(refused, whole, now[0])
        print(rights() == now)
        """,
        without,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["Operation not permitted True ['Uid:', '0', '0', '0', '0']", "True"]


def test_a_mistake_in_what_is_done_as_a_user_leaves_the_thread_whole() -> None:
    done = in_an_agent(
        """
        def work():
            before = rights()
            try:
                with acting_as(alice):
                    assert os.geteuid() == os.getegid() == alice.uid
                    assert sorted(os.getgroups()) == sorted(alice.groups)
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                return rights() == before
        print(seen(work))
        """
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize(
    "happens",
    [
        "lose(6)",
        "accounts._return = lambda *_: [][0]",
        "accounts._return = lambda *_: (_ for _ in ()).throw(MemoryError)",
    ],
    ids=["a right is gone", "a mistake of ours", "no memory"],
)
def test_a_process_one_of_whose_threads_cannot_become_root_again_ends_at_once(happens: str) -> None:
    done = in_an_agent(
        f"""
        def work():
            try:
                with acting_as(alice):
                    {happens}
            except BaseException as error:
                return error
        print("still here", seen(work), flush=True)
        """
    )
    assert (done.returncode, done.stdout) == (accounts.LEFT_AS_USER, ""), done.stderr
