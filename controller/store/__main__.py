"""``python -m elasticd.controller.store COMMAND``: what `elasticctl store` does, without a controller."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...protocol.errors import ElasticError, OperatorError
from ...runtime.directories import give_to_owner
from .. import config
from ..sealing import Seals
from . import copying
from .etcd import EtcdStore
from .interface import Store
from .sqlite import SqliteStore

DATABASE = "cluster.db"  # in a controller's state directory
RESTORED = """It is the past of that cluster, as it was at {time}. When a controller starts on it:
 * a job that has gone on since then saves its state, ends, and starts again from there: no step is lost;
 * workers of jobs that it does not know are left alone, and keep their GPUs, until an operator decides (`elasticctl servers`);
 * what users have asked for since then is lost: look at `elasticctl status`, and ask again for what is missing."""


def main(words: Sequence[str] | None = None) -> int:
    """The exit code: 0, or that of an error, of which there is one sentence on stderr."""
    parser = argparse.ArgumentParser(prog="elasticd.controller.store", description=__doc__)
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
    """Bring all records from one store to another, which is empty. No controller can write to `source` meanwhile."""
    with _read_for_good(source) as found, _empty(target) as store, _naming(target):
        copying.fill(store, found)
    print(f"{found}\n{target} holds all of it. {source} is as it was: start no controller on that one any more.")


def backup(source: str, file: Path) -> None:
    """Keep all records in a file; a controller may be using the store."""
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
    """Bring all records from a file into a store, which is empty."""
    found = copying.read_backup(file)
    print(f"{found}")
    with _empty(target) as store, _naming(target):
        copying.fill(store, found)
    moment = datetime.datetime.fromtimestamp(found.read_s, datetime.UTC)
    print(f"{target} holds all of it. " + RESTORED.format(time=f"{moment:%Y-%m-%d %H:%M:%S} UTC"))


@contextmanager
def _read_for_good(name: str) -> Iterator[copying.Contents]:
    """What a store holds that no controller writes to: SQLite is locked meanwhile, and who writes to etcd is deposed."""
    with _naming(name):
        kind, path = _parsed(name)
        store, seals = (_sqlite(_existing(path)), None) if kind == "sqlite" else _etcd(path)
    with _closing(store):
        with _naming(name):
            if isinstance(store, EtcdStore):
                copying.check_unused(store)
                copying.contents(store).cluster()  # nobody is deposed for nothing
                store.begin()
            found = copying.contents(store)
            found.cluster()
            if isinstance(store, EtcdStore):
                copying.check_unused(store)  # nor has one come meanwhile
            if seals is not None:
                seals.check_whole()
        yield found


@contextmanager
def _empty(name: str) -> Iterator[Store]:
    """A store that is empty, and may be written to."""
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
    """`path` itself, or the database in that state directory."""
    return path / DATABASE if path.is_dir() else path


def _existing(path: Path) -> Path:
    path = _database(path)
    if not path.is_file():
        raise OperatorError("there is no such file")
    return path


def _sqlite(path: Path) -> SqliteStore:
    """The database in `path`. Where root opens it in somebody else's directory, its files belong to the owner of the directory
    from the beginning: the controller, which runs as that user, has to read them."""
    try:
        store = SqliteStore(path)
        for name in (path.name, f"{path.name}-wal", f"{path.name}-shm", f"{path.name}.lock"):
            give_to_owner(path.with_name(name))
    except OSError as error:
        raise OperatorError(error.strerror or str(error)) from None
    return store


def _etcd(path: Path) -> tuple[EtcdStore, Seals]:
    """The store that the configuration in `path` names in its section `etcd`, whether or not it is the one in use."""
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
    """An error says which store it is about."""
    try:
        yield
    except OperatorError as error:
        raise OperatorError(f"{name}: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
