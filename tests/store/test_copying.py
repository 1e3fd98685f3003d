"""Copy, backup and restore of a store, by the code of the operator's command, and once by the command itself."""

from __future__ import annotations

import io
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from elasticd.controller.records import CLUSTER_KEY, ClusterRecord
from elasticd.controller.store import Deposed, Put, PutLeased, Record, SqliteStore, StoreUnavailable
from elasticd.controller.store.copying import Contents, check_unused, contents, contents_of_file, fill
from elasticd.controller.store.etcd import EtcdStore
from elasticd.controller.store.interface import Listing
from elasticd.controller.store_commands import main
from elasticd.protocol.errors import OperatorError
from elasticd.runtime.directories import give_to_owner

from ..etcds import PASSWORD, USER

CLUSTER = Put(CLUSTER_KEY, msgspec.msgpack.encode(ClusterRecord(id="c1")))
RECORDS = [
    CLUSTER,
    *(Put(f"/jobs/j-{n}/{part}", bytes([n % 256]) * 3000) for n in range(400) for part in ("spec", "state")),
]


def elasticctl(*words: object) -> subprocess.CompletedProcess[str]:
    command = list(map(str, words))
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = main(command)
    return subprocess.CompletedProcess(command, code, out.getvalue(), err.getvalue())


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A controller's state directory."""
    (tmp_path / "state").mkdir()
    store = SqliteStore(tmp_path / "state" / "cluster.db")
    store.commit([], RECORDS)
    store.close()
    return tmp_path / "state"


@pytest.fixture
def on_etcd(tmp_path: Path, etcds: Any) -> tuple[Path, Any]:
    """A controller's configuration that names an etcd cluster, and that store."""
    etcd, root = etcds.of("etcd-tls"), f"/elasticctl/{secrets.token_hex(4)}"
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "password").chmod(0o600)
    options = {
        "endpoints": [member.endpoint for member in etcd.members],
        "root": root,
        "ca": str(etcd.directory / "ca.pem"),
        "user": USER,
        "password_file": "password",
        "timeout_s": 2.0,
    }
    file = tmp_path / "controller.yaml"
    file.write_text(yaml.safe_dump({"etcd": options}))
    return file, etcd.store(root)


def held(store: Any) -> list[tuple[str, bytes]]:
    return [(record.key, record.value) for record in store.list("").records]


WANTED = sorted((put.key, put.value) for put in RECORDS)


def test_a_store_is_copied_to_etcd_and_back(tmp_path: Path, filled: Path, on_etcd: tuple[Path, Any]) -> None:
    file, store = on_etcd
    command = [sys.executable, "-m", "elasticd.ctl.main", "store", "copy", f"sqlite:{filled}", f"etcd:{file}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "cluster c1: 801 records, 400 jobs" in done.stdout
    assert held(store) == WANTED
    store.begin()
    lease = store.grant(60.0)
    store.commit([], [PutLeased("/leader", b"", lease.id)])
    done = elasticctl("copy", f"etcd:{file}", f"sqlite:{tmp_path / 'back.db'}")
    assert done.returncode == 2
    assert "controllers use it (/leader): stop all of them first" in done.stderr
    done = elasticctl("backup", f"etcd:{file}", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    assert "801 records" in done.stdout, "what a lease holds says who is there at the moment"
    store.revoke(lease.id)
    done = elasticctl("copy", f"etcd:{file}", f"sqlite:{tmp_path / 'back.db'}")
    assert done.returncode == 0, done.stderr
    back = SqliteStore(tmp_path / "back.db")
    assert held(back) == WANTED
    back.close()
    with pytest.raises(Deposed):
        store.commit([], [Put("/late", b"")])


def test_a_store_that_is_not_empty_is_never_written_to(filled: Path, on_etcd: tuple[Path, Any], tmp_path: Path) -> None:
    file, store = on_etcd
    store.begin()
    store.commit([], [Put("/a", b"")])
    for source, target in (
        (f"sqlite:{filled}", f"etcd:{file}"),
        (f"sqlite:{filled}", f"sqlite:{filled / 'cluster.db'}"),
    ):
        done = elasticctl("copy", source, target)
        assert done.returncode == 2
        assert done.stderr.startswith(f"elasticctl: {target}: ")
        assert len(done.stderr.splitlines()) == 1
    assert "it is not empty: it has 1 records" in elasticctl("copy", f"sqlite:{filled}", f"etcd:{file}").stderr
    store.commit([], [Put("/b", b"")])  # nor was its writer deposed
    assert store.keys("") == ("/a", "/b")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("copy", "cluster.db", "sqlite:x"), "is no store"),
        (("copy", "sqlite:none.db", "sqlite:x"), "there is no such file"),
        (("copy", "sqlite:empty.db", "sqlite:x"), "there is nothing of a cluster in it"),
        (("backup", "sqlite:empty.db", "x"), "there is nothing of a cluster in it"),
        (("restore", "none", "sqlite:x"), "No such file"),
        (("restore", "empty.db", "sqlite:x"), "is not a backup of a store"),
        (("copy", "sqlite:empty.db", "etcd:none.yaml"), "there is nothing"),
        (("backup", "etcd:none.yaml", "x"), "none.yaml"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    SqliteStore(tmp_path / "empty.db").close()
    done = elasticctl(*words)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_store_in_use_is_not_copied_but_backed_up(tmp_path: Path, filled: Path) -> None:
    store = SqliteStore(filled / "cluster.db")
    done = elasticctl("copy", f"sqlite:{filled}", f"sqlite:{tmp_path / 'other.db'}")
    assert done.returncode == 2
    assert "in use by another controller" in done.stderr
    done = elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept")
    assert done.returncode == 0, done.stderr
    store.close()
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o600
    again = elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept")
    assert again.returncode == 2
    assert "is there already" in again.stderr


def test_a_backup_is_restored_and_says_what_that_means(tmp_path: Path, filled: Path, on_etcd: tuple[Path, Any]) -> None:
    file, store = on_etcd
    assert elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept").returncode == 0
    done = elasticctl("restore", tmp_path / "kept", f"etcd:{file}")
    assert done.returncode == 0, done.stderr
    assert "cluster c1" in done.stdout
    assert "no step is lost" in done.stdout
    assert held(store) == WANTED
    assert elasticctl("backup", f"etcd:{file}", tmp_path / "second").returncode == 0
    done = elasticctl("restore", tmp_path / "second", f"sqlite:{tmp_path / 'restored.db'}")
    assert done.returncode == 0, done.stderr
    restored = SqliteStore(tmp_path / "restored.db")
    assert held(restored) == WANTED
    restored.close()


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: data[:-5] + b"x" + data[-4:]])
def test_a_damaged_backup_is_refused_before_anything_is_written(tmp_path: Path, filled: Path, spoil: Any) -> None:
    assert elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept").returncode == 0
    (tmp_path / "kept").write_bytes(spoil((tmp_path / "kept").read_bytes()))
    done = elasticctl("restore", tmp_path / "kept", f"sqlite:{tmp_path / 'restored.db'}")
    assert done.returncode == 2
    assert "is damaged" in done.stderr
    assert not (tmp_path / "restored.db").exists()


def test_a_backup_of_another_version_is_refused_as_such(tmp_path: Path, filled: Path) -> None:
    assert elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept").returncode == 0
    data = (tmp_path / "kept").read_bytes()
    (tmp_path / "kept").write_bytes(data.replace(b"elasticctl store 1", b"elasticctl store 2", 1))
    done = elasticctl("restore", tmp_path / "kept", f"sqlite:{tmp_path / 'restored.db'}")
    assert done.returncode == 2
    assert "is a backup of another version, elasticctl store 2" in done.stderr


def test_only_states_of_jobs_and_the_archive_are_counted_as_jobs() -> None:
    keys = ("/jobs/a-1/spec", "/jobs/a-1/state", "/jobs/a-2/state", "/other/state", "/archive/1/a-0")
    assert Contents(tuple((key, b"") for key in keys), 0.0).jobs == (3, 1)


def test_what_is_carried_out_in_part_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticd.controller.store.copying.READ_AGAIN_S", 0.0)
    whole = [True, False]

    class Unsettled(EtcdStore):
        def __init__(self) -> None: ...
        def close(self) -> None: ...

        def pages(self, first: str, end: str) -> Iterator[Listing]:
            yield Listing((Record("/a", b"half" if len(whole) == 2 else b"whole", 1),), 1)

        def is_whole(self, revision: int) -> bool:
            return whole.pop()

    assert contents(Unsettled()).records == (("/a", b"whole"),)


def test_a_copy_between_files_says_which_cluster_it_is_and_what_is_in_it(tmp_path: Path, filled: Path) -> None:
    done = elasticctl("copy", f"sqlite:{filled}", f"sqlite:{tmp_path / 'other.db'}")
    assert done.returncode == 0, done.stderr
    assert "cluster c1: 801 records, 400 jobs, 0 of them in the archive" in done.stdout


def test_a_store_that_loses_what_is_copied_into_it_is_reported(tmp_path: Path, filled: Path) -> None:
    class Forgetful(SqliteStore):
        def commit(self, conditions: Any, writes: Any) -> int | None:
            return super().commit(conditions, writes[:-1])

    store = Forgetful(tmp_path / "other.db")
    with pytest.raises(OperatorError, match="does not hold what was written"):
        fill(store, contents_of_file(filled / "cluster.db"))
    store.close()


def test_records_of_running_controllers_are_not_copied_and_keep_a_store_from_being_moved(tmp_path: Path) -> None:
    class Led(SqliteStore):
        """As a shared store shows it while a controller runs."""

        def list(self, prefix: str) -> Listing:
            found = super().list(prefix)
            return Listing(tuple(replace(r, lease=7 * (r.key == "/leader")) for r in found.records), found.revision)

        def pages(self, first: str, end: str) -> Iterator[Listing]:
            yield self.list("")

    store = Led(tmp_path / "db")
    store.commit([], [CLUSTER])
    check_unused(store)
    store.commit([], [Put("/leader", b"")])
    with pytest.raises(OperatorError, match=r"controllers use it \(/leader\)"):
        check_unused(store)
    assert contents(store).records == ((CLUSTER.key, CLUSTER.value),)
    store.close()


def test_a_damaged_database_is_not_backed_up_as_if_it_were_whole(tmp_path: Path, filled: Path) -> None:
    data = bytearray((filled / "cluster.db").read_bytes())
    for page in range(3 * 4096, len(data), 4096):
        data[page : page + 64] = b"\xff" * 64
    (filled / "cluster.db").write_bytes(bytes(data))
    done = elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept")
    assert done.returncode == 2
    assert "cannot be read" in done.stderr
    assert not (tmp_path / "kept").exists()


def test_an_interrupted_copy_leaves_an_empty_store(shared: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = shared()
    store.begin()
    real, left = store._connection.write, 2

    def fails(method: Any, request: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoreUnavailable("no answer", outcome_unknown=True)
        return real(method, request)

    monkeypatch.setattr(store._connection, "write", fails)
    with pytest.raises(StoreUnavailable) as caught:
        store.commit([], RECORDS)
    assert not caught.value.outcome_unknown
    after = shared()
    after.begin()
    assert after.keys("") == ()


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files for others")
def test_what_root_restores_belongs_to_the_service_that_is_to_read_it(filled: Path, tmp_path: Path) -> None:
    assert elasticctl("backup", f"sqlite:{filled}", tmp_path / "kept").returncode == 0
    state = tmp_path / "of_the_service"
    state.mkdir(mode=0o700)
    os.chown(state, 12_345, 12_345)
    assert elasticctl("restore", tmp_path / "kept", f"sqlite:{state}").returncode == 0
    found = {file.name: (file.stat().st_uid, file.stat().st_gid) for file in state.iterdir()}
    assert "cluster.db" in found
    assert set(found.values()) == {(12_345, 12_345)}, found


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes files for others")
def test_a_link_in_the_services_directory_gives_no_file_of_roots_away(tmp_path: Path) -> None:
    state, secret = tmp_path / "of_the_service", tmp_path / "secret"
    state.mkdir(mode=0o700)
    secret.write_text("root's")
    os.link(secret, state / "cluster.db-shm")
    (state / "cluster.db-wal").symlink_to(secret)
    os.chown(state, 12_345, 12_345)
    give_to_owner(state / "cluster.db-shm")
    with pytest.raises(OSError, match="symbolic links"):
        give_to_owner(state / "cluster.db-wal")
    assert secret.stat().st_uid == 0
