"""The file for `elasticctl up --hosts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticd.ctl.hosts import Host, load
from elasticd.protocol.errors import UserError

ADDRESSES = {"gpu1": "10.0.7.1", "gpu2.lab": "10.0.7.2", "here": "127.0.1.1", "10.0.7.3": "10.0.7.3"}


def read(tmp_path: Path, text: str) -> tuple[Host, ...]:
    path = tmp_path / "hosts.txt"
    path.write_text(text)
    return load(path, lambda host: ADDRESSES.get(host, ""))


def test_a_line_says_what_differs_from_the_defaults(tmp_path: Path) -> None:
    text = """
        # our servers
        gpu1
        alice@gpu2.lab  name=two  slots=4   # the old one
        10.0.7.3        python=/opt/elasticctl/bin/python
        unknown         address=10.0.7.4
    """
    assert read(tmp_path, text) == (
        Host(target="gpu1", name="gpu1", address="10.0.7.1"),
        Host(target="alice@gpu2.lab", name="two", address="10.0.7.2", slots=4),
        Host(target="10.0.7.3", name="10.0.7.3", address="10.0.7.3", python="/opt/elasticctl/bin/python"),
        Host(target="unknown", name="unknown", address="10.0.7.4"),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names no host"),
        ("-oProxyCommand=x", "line 1: '-oProxyCommand=x' is not HOST"),
        ("gpu1;reboot", "is not HOST"),
        ("a b@gpu1", "line 1: 'b@gpu1' is not one of name=, slots="),
        ("gpu1 slots=0", "slots=0 is not a number from 1"),
        ("gpu1 slots=1 slots=2", "slots= stands there twice"),
        ("gpu1 name=../x", "is not a server's name"),
        ("gpu1\n\ngpu1", "line 3: line 1 is called gpu1 too"),
        ("gpu9", "line 1: gpu9 has no IPv4 address"),
        ("gpu1 address=fe80::1", "is not an IPv4 address"),
        ("gpu1 address=0.0.0.0", "is not the address of a host"),
        ("gpu1\nhere", "line 2: here is 127.0.1.1 here, where no other host reaches it"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert reason in str(caught.value)
