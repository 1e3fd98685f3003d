"""The controller's directory of keys, and key files for users."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from elasticd.protocol.errors import ElasticError, OperatorError, UserError
from elasticd.protocol.principals import LOCAL_OPERATOR, Role
from elasticd.runtime import directories
from elasticd.runtime.keys import JobKeys, KeyDirectory, KeyFile, Known, Pair, Principals


@pytest.fixture
def keys(tmp_path: Path) -> KeyDirectory:
    found = KeyDirectory(tmp_path / "keys")
    found.make()
    return found


def test_a_key_file_says_who_it_is_and_how_to_know_the_controller(keys: KeyDirectory, tmp_path: Path) -> None:
    given = keys.add("user:alice", "", tmp_path / "alice.key", "tcp://head:7700")
    read = KeyFile.read(tmp_path / "alice.key")
    assert read == given
    assert (read.role, read.name, read.controller) == (Role.USER, "alice", "tcp://head:7700")
    assert read.controller_public == keys.pair().public
    who = keys.principals().of_key(given.pair.public.decode())
    assert who is not None
    assert (str(who), who.account) == ("user:alice", "alice")
    assert given.pair.secret not in repr(given).encode()


def test_everything_secret_is_for_its_owner_alone(keys: KeyDirectory, tmp_path: Path) -> None:
    keys.add("server:s1", "", tmp_path / "s1.key")
    for path in (tmp_path / "s1.key", *keys.path.iterdir()):
        assert path.stat().st_mode & 0o777 == 0o600, path
    assert keys.path.stat().st_mode & 0o777 == 0o700


def test_a_revoked_key_is_unknown_and_a_new_one_may_follow(keys: KeyDirectory, tmp_path: Path) -> None:
    first = keys.add("user:alice", "al", tmp_path / "1")
    with pytest.raises(UserError, match="has a key already"):
        keys.add("user:alice", "al", tmp_path / "2")
    keys.principals()
    assert not keys.changed()
    keys.revoke("user:alice")
    assert keys.changed()
    now = keys.principals()
    assert now.of_key(first.pair.public.decode()) is None
    assert now.known[0].revoked_s is not None
    second = keys.add("user:alice", "al", tmp_path / "2")
    assert keys.principals().of_key(second.pair.public.decode()) is not None
    assert keys.principals().of_key(first.pair.public.decode()) is None


def test_what_is_wrong_is_said(keys: KeyDirectory, tmp_path: Path) -> None:
    for principal in ("alice", "king:alice", "user:../x", "controller:c", "user:"):
        with pytest.raises(ElasticError):
            keys.add(principal, "", tmp_path / "x")
    with pytest.raises(UserError, match="no account"):
        keys.add("server:s1", "root", tmp_path / "x")
    with pytest.raises(UserError, match="no key here"):
        keys.revoke("user:nobody")
    (tmp_path / "there").write_text("mine")
    with pytest.raises(OperatorError, match="is there already"):
        keys.add("user:bob", "", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "mine"
    assert keys.principals().known == ()
    with pytest.raises(OperatorError, match="is there already"):
        keys.make()


def test_without_keys_it_is_said_how_they_are_made(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="keys init"):
        KeyDirectory(tmp_path / "none").pair()


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda path: path.chmod(0o755), "chmod 700"),
        (lambda path: (path / "known.json").chmod(0o644), "chmod 600"),
        (lambda path: (path / "known.json").write_text("{"), "is not a list"),
        (
            lambda path: (path / "known.json").write_text(
                '{"version": 1, "known": [{"principal": "x", "public": ""}]}'
            ),
            "x",
        ),
        (lambda path: (path.rename(path.with_name("moved")), path.symlink_to("moved/known.json")), "Not a directory"),
    ],
)
def test_a_directory_that_is_not_as_it_should_be_is_refused(
    keys: KeyDirectory, harm: Callable[[Path], object], said: str
) -> None:
    harm(keys.path)
    with pytest.raises(OperatorError, match=said):
        keys.principals()


def test_keys_where_others_may_write_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(OperatorError, match="others may write"):
        KeyDirectory(tmp_path / "open" / "keys").make()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_another_user_has_made_first_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "theirs").mkdir(mode=0o700)
    os.chown(shared / "theirs", 65534, 65534)
    with pytest.raises(OperatorError, match="theirs is not safe"):
        directories.check_way(shared / "theirs" / "socket")
    with pytest.raises(OperatorError, match="must be a directory of user 0"):
        directories.private_directory(shared / "theirs")
    (shared / "link").symlink_to(tmp_path)
    os.chown(shared / "link", 65534, 65534, follow_symlinks=False)
    with pytest.raises(OperatorError, match="link is not safe"):
        directories.check_way(shared / "link" / "socket")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0o600)
    os.chown(tmp_path / "secret", 65534, 65534)
    with pytest.raises(OperatorError, match="belongs to user 65534"):
        directories.read_secret(tmp_path / "secret")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_root_gives_what_it_writes_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    """The controller's user reads the files that `sudo elasticctl keys add` has written."""
    path = tmp_path / "keys"
    path.mkdir(mode=0o700)
    os.chown(path, 65534, 65534)
    keys = KeyDirectory(path)
    keys.make()
    keys.add("server:s1", "", tmp_path / "s1.key")
    assert {each.stat().st_uid for each in path.iterdir()} == {65534}
    assert (tmp_path / "s1.key").stat().st_uid == 0
    assert len(keys.principals().known) == 1


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"principal: user:alice\n",
        b"principal: [user]\npublic: x\nsecret: x\ncontroller_public: x\n",
        b"principal: user:alice\npublic: '" + b"x" * 40 + b"'\nsecret: '" + b"~" * 40 + b"'\ncontroller_public: x\n",
        b"principal: user:alice\npublic: '" + b"#" * 40 + b"'\nsecret: '" + b"#" * 40 + b"'\ncontroller_public: x\n",
        b"a: &a [*a, *a]\n",
    ],
)
def test_bytes_that_are_no_key_file_are_refused_without_showing_them(text: bytes) -> None:
    with pytest.raises(OperatorError) as raised:
        KeyFile.parsed(text, "file")
    assert "~~~" not in str(raised.value)


def test_a_unix_user_is_who_its_account_says_unless_the_list_says_otherwise() -> None:
    nobody = pwd.getpwuid(65534).pw_name
    assert Principals().of_uid(os.getuid()) == LOCAL_OPERATOR
    found = Principals().of_uid(65534)
    assert found is not None
    assert (found.role, found.name, found.account) == (Role.USER, nobody, nobody)
    assert Principals().of_uid(4_000_000_000) is None
    public = Pair.new().public.decode()
    theirs = Known(principal=f"user:{nobody}", public=public, account=nobody)
    assert Principals((theirs,)).of_uid(65534) == found
    for taken in (
        Known(principal=f"user:{nobody}", public=public, account="somebody-else"),
        Known(principal=f"user:{nobody}", public=public, account=nobody, revoked_s=1.0),
    ):
        assert Principals((taken,)).of_uid(65534) is None


def test_accounts_that_the_list_does_not_name_are_nobody_where_there_is_one(keys: KeyDirectory, tmp_path: Path) -> None:
    """A service's account on the controller's machine could see all jobs, by the socket in the file system."""
    nobody = pwd.getpwuid(65534).pw_name
    assert keys.principals().of_uid(65534) is None
    assert keys.principals().of_uid(os.getuid()) == LOCAL_OPERATOR
    keys.add(f"operator:{nobody}", nobody, tmp_path / "1")
    found = keys.principals().of_uid(65534)
    assert found is not None
    assert (found.role, found.name) == (Role.USER, nobody), "an operator is one by the key alone"
    keys.revoke(f"operator:{nobody}")
    assert keys.principals().of_uid(65534) is None
    keys.add(f"user:{nobody}", nobody, tmp_path / "2")
    assert keys.principals().of_uid(65534) == found


def test_the_key_of_a_job_is_its_own_and_the_same_after_a_restart(tmp_path: Path) -> None:
    keys = JobKeys.kept_in(tmp_path)
    assert JobKeys.kept_in(tmp_path).of("digits-1", "a") == keys.of("digits-1", "a")
    assert len({keys.of("digits-1", "a"), keys.of("digits-1", "b"), keys.of("digits-2", "a")}) == 3
    assert len(Pair.of(keys.of("digits-1", "a").encode()).public) == 40
    (tmp_path / "jobs.secret").write_bytes(b"short")
    with pytest.raises(OperatorError, match="5 bytes"):
        JobKeys.kept_in(tmp_path)


def test_one_name_in_two_roles_is_one_person(keys: KeyDirectory, tmp_path: Path) -> None:
    keys.add("operator:carol", "carol", tmp_path / "1")
    with pytest.raises(UserError, match="would own the jobs of operator:carol, whose account is carol"):
        keys.add("user:carol", "mallory", tmp_path / "2")
    assert not (tmp_path / "2").exists()
    keys.add("user:carol", "carol", tmp_path / "2")
    keys.add("server:carol", "", tmp_path / "3")
    keys.add("user:dave", "david", tmp_path / "4")
    keys.add("reader:dave", "", tmp_path / "5")
    assert {each.principal: each.account for each in keys.principals().known}["reader:dave"] == ""


@pytest.mark.parametrize("role", ["server", "reader"])
def test_a_role_without_jobs_has_no_account(role: str, keys: KeyDirectory, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"a {role} has no account: jobs run as their owners"):
        keys.add(f"{role}:carol", "carol", tmp_path / "1")
    assert not (tmp_path / "1").exists()
