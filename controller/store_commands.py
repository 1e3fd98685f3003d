"""``python -m elasticd.controller.store_commands COMMAND``: the commands of `elasticctl store`, without a controller."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..protocol.errors import ElasticError, OperatorError
from ..runtime.directories import give_to_owner
from . import config
from .sealing import Seals
from .store import copying
from .store.etcd import EtcdStore
from .store.interface import Store
from .store.sqlite import SqliteStore

DATABASE = "cluster.db"  # name of the database in a controller's state directory
RESTORED = """It is the past of that cluster, as it was at {time}. When a controller starts on it:
 * a job that has gone on since then saves its state, ends, and starts again from there: no step is lost;
 * workers of jobs that it does not know are left alone, and keep their GPUs, until an operator decides (`elasticctl servers`);
 * what users have asked for since then is lost: look at `elasticctl status`, and ask again for what is missing."""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command, and return the exit code: 0, or that of an error, which is written to stderr in one sentence."""
    parser = argparse.ArgumentParser(prog="elasticd.controller.store_commands", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, places in (
        ("copy", ("source", "target")),
        ("backup", ("source", "file")),
        ("restore", ("file", "target")),
    ):
        command = commands.add_parser(name)
        for place in places:
            command.add_argument(place)
    given = parser.parse_args(words)
    try:
        if given.command == "copy":
            copy(given.source, given.target)
        elif given.command == "backup":
            backup(given.source, Path(given.file))
        else:
            restore(Path(given.file), given.target)
    except ElasticError as error:
        print(f"elasticctl: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def copy(source: str, target: str) -> None:
    """Copy all records from the store `source` into the empty store `target`.

    No controller can write to `source` meanwhile.
    """
    with _read_for_good(source) as found, _empty(target) as store, _naming(target):
        copying.fill(store, found)
    print(f"{found}\n{target} holds all of it. {source} is as it was: start no controller on that one any more.")


def backup(source: str, file: Path) -> None:
    """Write all records of the store `source` to a new file. A controller may be using the store."""
    with _naming(source):
        kind, path = _parsed(source)
        if kind == "sqlite":
            found = copying.contents_of_file(_existing(path))
        else:
            shared, seals = _etcd(path)
            with _closing(shared) as store:
                found = copying.contents(store)
            seals.check_whole()
        print(f"{found}")
    copying.write_backup(file, found)
    print(f"{file} holds all of it. Whoever reads it knows the environments of jobs.")


def restore(file: Path, target: str) -> None:
    """Copy all records from a backup file into the empty store `target`."""
    found = copying.read_backup(file)
    print(f"{found}")
    with _empty(target) as store, _naming(target):
        copying.fill(store, found)
    moment = datetime.datetime.fromtimestamp(found.read_s, datetime.UTC)
    print(f"{target} holds all of it. " + RESTORED.format(time=f"{moment:%Y-%m-%d %H:%M:%S} UTC"))


@contextmanager
def _read_for_good(name: str) -> Iterator[copying.Contents]:
    """Yield all records of a store while no controller can write to it.

    A SQLite file stays locked until the end of the block; in etcd, the writer is deposed. Raises OperatorError if a
    controller uses the store, or the store holds no cluster.
    """
    with _naming(name):
        kind, path = _parsed(name)
        store, seals = (_sqlite(_existing(path)), None) if kind == "sqlite" else _etcd(path)
    with _closing(store):
        with _naming(name):
            if isinstance(store, EtcdStore):
                copying.check_unused(store)
                copying.contents(store).cluster()  # checked first, so that no controller is deposed in vain
                store.begin()
            found = copying.contents(store)
            found.cluster()
            if isinstance(store, EtcdStore):
                copying.check_unused(store)  # a controller may have started meanwhile
            if seals is not None:
                seals.check_whole()
        yield found


@contextmanager
def _empty(name: str) -> Iterator[Store]:
    """Yield an empty store that can be written to. Raises OperatorError if the store is not empty."""
    with _naming(name):
        kind, path = _parsed(name)
        store, _ = (_sqlite(_database(path)), None) if kind == "sqlite" else _etcd(path)
    with _closing(store):
        with _naming(name):
            copying.check_empty(store)
            if isinstance(store, EtcdStore):
                store.begin()
        yield store


def _parsed(name: str) -> tuple[str, Path]:
    kind, _, path = name.partition(":")
    if kind not in ("sqlite", "etcd") or not path:
        raise OperatorError(
            "is no store: say sqlite:PATH, or etcd:FILE, a controller's configuration that names an etcd cluster"
        )
    return kind, Path(path).expanduser()


def _database(path: Path) -> Path:
    """Return `path`, or the database in it if `path` is a state directory."""
    return path / DATABASE if path.is_dir() else path


def _existing(path: Path) -> Path:
    path = _database(path)
    if not path.is_file():
        raise OperatorError("there is no such file")
    return path


def _sqlite(path: Path) -> SqliteStore:
    """Open the database in `path`. Raises OperatorError if the database cannot be used.

    All its files are given to the owner of the directory. So the controller, which runs as that user, can read a
    database that root has created.
    """
    try:
        store = SqliteStore(path)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.lock"):
            give_to_owner(path.with_name(name))
    except OSError as error:
        raise OperatorError(error.strerror or str(error)) from None
    return store


def _etcd(path: Path) -> tuple[EtcdStore, Seals]:
    """Open the store of the section `etcd` in the controller configuration `path`, even if that selects SQLite."""
    import msgspec

    options = config.load(path)
    access = config.etcd_of(msgspec.structs.replace(options, store="etcd"), path)
    assert access is not None
    assert options.etcd is not None
    seals = Seals(options.keys, options.state)
    return EtcdStore(access, options.etcd.root_of(options.cluster), seals=seals), seals


@contextmanager
def _closing(store: SqliteStore | EtcdStore) -> Iterator[SqliteStore | EtcdStore]:
    try:
        yield store
    finally:
        store.close()


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Prefix the text of an OperatorError with the name of the store."""
    try:
        yield
    except OperatorError as error:
        raise OperatorError(f"{name}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
