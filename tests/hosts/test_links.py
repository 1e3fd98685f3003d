"""Network faults of `make soak`: links that are cut, slow or lossy in one direction, with all others intact."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.cluster
MakeLab = Callable[..., Any]

COUNT = 60
ASK = f"""
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(3)
began, heard = time.monotonic(), 0
for number in range({COUNT}):
    s.sendto(b"x" * 100, (sys.argv[1], 4000))
    time.sleep(0.002)
try:
    while heard < {COUNT}:
        s.recv(2000)
        heard += 1
        first = time.monotonic() - began if heard == 1 else first
except TimeoutError:
    pass
print(heard, first if heard else 0)
"""
ANSWER = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 4000))
heard = 0
while True:
    data, who = s.recvfrom(2000)
    heard += 1
    open(sys.argv[1], "w").write(str(heard))
    s.sendto(data, who)
"""
SEND = "import socket, sys; socket.create_connection((sys.argv[1], 4001), 30).sendall(bytes(1 << 22))"
TAKE = """
import socket, sys
s = socket.create_server(("", 4001))
open(sys.argv[1], "w").write("listens")
c, _ = s.accept()
n = 0
while got := c.recv(1 << 16):
    n += len(got)
open(sys.argv[1], "w").write(str(n))
"""


def test_a_link_is_cut_slow_or_lossy_in_one_direction(make_lab: MakeLab, tmp_path: Path) -> None:
    from verification.hosts.links import CUT, Condition, Links

    lab = make_lab("one", "two")
    heard = tmp_path / "shared" / "heard"
    with Links(lab) as links:
        lab["two"].start("python3", "-c", ANSWER, str(heard), log=tmp_path / "answer.log")
        lab["two"].shell("until ss -lun | grep -q 4000; do sleep 0.02; done")

        def ask(network: int = 0) -> tuple[int, float]:
            """Number of answers, and time of the first."""
            count, first_s = lab["one"].run("python3", "-c", ASK, lab.address("two", network)).stdout.split()
            return int(count), float(first_s)

        assert ask()[0] == COUNT

        there = links.between(["one"], ["two"], [0], back=False)
        links.spoil(there, CUT)
        heard.write_text("none")
        assert ask()[0] == 0
        assert heard.read_text() == "none", "what is sent over a cut link arrives"
        assert ask(network=1)[0] == COUNT, "the other network is cut, too"
        links.mend(there, CUT)

        back = links.between(["two"], ["one"], [0], back=False)
        links.spoil(back, CUT)
        heard.write_text("none")
        assert ask()[0] == 0
        assert heard.read_text() != "none", "the other direction is cut, too"
        links.mend(back, CUT)
        assert ask()[0] == COUNT

        slow = Condition(delay_ms=150.0)
        links.spoil([*there, *back], slow)
        count, first_s = ask()
        assert count == COUNT
        assert first_s >= 0.3
        links.mend([*there, *back], slow)

        lossy = Condition(loss=0.3)
        links.spoil(there, lossy)
        assert 0 < ask()[0] < COUNT
        links.mend(there, lossy)
        assert ask()[0] == COUNT

        slow_again = Condition(delay_ms=5.0, loss=0.01)
        links.spoil([*there, *back], slow_again)
        got = tmp_path / "shared" / "got"
        lab["two"].start("python3", "-c", TAKE, str(got), log=tmp_path / "take.log")
        lab["two"].shell(f"until test -s {got}; do sleep 0.02; done")
        lab["one"].run("python3", "-c", SEND, lab.address("two"))
        lab["two"].shell(f"until grep -qx {1 << 22} {got}; do sleep 0.05; done")
