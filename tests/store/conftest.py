"""Stores of every kind. An etcd cluster is started once, and each test has a separate root in it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller.store import SqliteStore

from ..etcds import Etcd, needed

CONFORMING = ("etcd", "etcd-three", "etcd-tls")
KINDS = {"etcd": {}, "etcd-three": {"size": 3}, "etcd-tls": {"tls": True}, "etcd-certificates": {"certificates": True}}


class Etcds:
    """The clusters that a test session has started, by kind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._started: dict[str, Etcd] = {}

    def of(self, kind: str) -> Etcd:
        if kind not in self._started:
            needed()
            directory = self._directory / kind
            directory.mkdir()
            etcd = Etcd(directory, **KINDS[kind])
            self._stack.callback(etcd.close)
            self._started[kind] = etcd
        return self._started[kind]

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="session")
def etcds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcds]:
    etcds = Etcds(tmp_path_factory.mktemp("etcds"))
    yield etcds
    etcds.close()


@pytest.fixture(params=["sqlite", *CONFORMING])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An empty, writable store."""
    store: Any
    if request.param == "sqlite":
        store = SqliteStore(tmp_path / "db")
    else:
        etcds: Etcds = request.getfixturevalue("etcds")
        store = etcds.of(request.param).store(f"/elasticctl/{secrets.token_hex(4)}")
        store.begin()
    yield store
    store.close()


@pytest.fixture(params=CONFORMING)
def shared(request: pytest.FixtureRequest, etcds: Etcds) -> Iterator[Any]:
    """A function that opens the same store again; none of the results has written yet."""
    root = f"/elasticctl/{secrets.token_hex(4)}"
    with ExitStack() as stack:

        def opened(**changes: Any) -> Any:
            store = etcds.of(request.param).store(root, **changes)
            stack.callback(store.close)
            return store

        yield opened


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a cluster for this test alone."""
    needed()
    with ExitStack() as stack:

        def started(**options: Any) -> Etcd:
            etcd = Etcd(tmp_path, **options)
            stack.callback(etcd.close)
            return etcd

        yield started
