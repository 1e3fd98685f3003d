"""`elasticctl store certs`: with its certificates a real etcd admits a controller, and nothing else."""

from __future__ import annotations

import secrets
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elasticd.controller.store.etcd_connection import Connection
from elasticd.controller.store.interface import Put, StoreUnavailable
from elasticd.ctl.etcdcerts import Member, advice, make
from elasticd.protocol.errors import OperatorError, UserError

from ..etcds import Etcd, needed

MEMBER = Member("m0", ("127.0.0.1", "localhost"))


def test_a_controller_with_its_certificate_is_let_in_and_nobody_without_one(tmp_path: Path) -> None:
    needed()
    made = make(tmp_path / "etcd", [MEMBER], ["c1"])
    assert {path.stat().st_mode & 0o777 for path in made} == {0o600}
    (tmp_path / "etcd" / "member-m0.pem").rename(tmp_path / "etcd" / "member.pem")
    (tmp_path / "etcd" / "member-m0.key").rename(tmp_path / "etcd" / "member.key")
    etcd = Etcd(tmp_path / "etcd", certificates=True, made=True)
    try:
        own: dict[str, Any] = {"cert": tmp_path / "etcd" / "client-c1.pem", "key": tmp_path / "etcd" / "client-c1.key"}
        with closing(etcd.store("/elasticctl/lab", **own)) as store:
            store.begin()
            assert store.commit((), (Put("/a", b"1"),)) is not None
        _enable_users(etcd, tmp_path / "etcd")
        with closing(etcd.store("/elasticctl/lab", **own)) as store:
            store.begin()
            assert store.commit((), (Put("/a", b"2"),)) is not None
            store.revoke(store.grant(5.0).id)
        with closing(etcd.store("/elasticctl/other", **own)) as store, pytest.raises(StoreUnavailable, match="may not"):
            store.begin()
        with closing(etcd.store("/elasticctl/lab", cert=None, key=None)) as store, pytest.raises(StoreUnavailable):
            store.get("/a")
    finally:
        etcd.close()


def _enable_users(etcd: Etcd, directory: Path) -> None:
    """As the command instructs; here users have passwords too, which are discarded."""
    connection = Connection(etcd.access(cert=directory / "client-root.pem", key=directory / "client-root.key"))
    rpc = connection.rpc
    auth: Any = rpc.AuthStub(connection.endpoint._client.channel)
    auth.RoleAdd(rpc.AuthRoleAddRequest(name="elasticctl"))
    permission = {"permType": 2, "key": b"/elasticctl/lab/", "range_end": b"/elasticctl/lab0"}
    auth.RoleGrantPermission(rpc.AuthRoleGrantPermissionRequest(name="elasticctl", perm=permission))
    auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"))
    for user, role in (("c1", "elasticctl"), ("root", "root")):
        auth.UserAdd(rpc.AuthUserAddRequest(name=user, password=secrets.token_hex(16)))
        auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=user, role=role))
    auth.AuthEnable(rpc.AuthEnableRequest())
    connection.close()


def test_what_is_there_is_kept_and_what_is_missing_is_made(tmp_path: Path) -> None:
    first = make(tmp_path / "d", [MEMBER], ["c1"])
    before = {path: path.read_bytes() for path in first}
    assert make(tmp_path / "d", [MEMBER], ["c1"]) == []
    assert [path.name for path in make(tmp_path / "d", [MEMBER], ["c1", "c2"])] == ["client-c2.key", "client-c2.pem"]
    assert {path: path.read_bytes() for path in first} == before
    assert sorted(path.suffix for path in (tmp_path / "d").iterdir()) == [".key"] * 5 + [".pem"] * 5


def test_mistakes_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="NAME=ADDRESS"):
        Member.parsed("c1")
    with pytest.raises(UserError, match="not root"):
        make(tmp_path / "d", [MEMBER], ["root"])
    make(tmp_path / "d", [MEMBER], ["c1"])
    with pytest.raises(OperatorError, match=r"is not for 10\.0\.0\.9: remove it"):
        make(tmp_path / "d", [Member("m0", ("10.0.0.9",))], ["c1"])
    (tmp_path / "d" / "ca.key").unlink()
    with pytest.raises(OperatorError, match=r"ca\.key: is missing.*put it back"):
        make(tmp_path / "d", [MEMBER], ["c1"])
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(OperatorError, match="chmod 700"):
        make(tmp_path / "open", [MEMBER], ["c1"])


def test_the_role_reaches_the_keys_of_the_cluster_alone() -> None:
    text = advice(
        Path("/root/etcd"),
        [Member.parsed("c1=10.0.0.1"), Member.parsed("c2=10.0.0.2")],
        ["c1", "c2"],
        "/elasticctl/lab",
    )
    assert "role grant-permission elasticctl --prefix=true readwrite /elasticctl/lab/\n" in text
    assert "user add c2 --no-password && etcdctl user grant-role c2 elasticctl" in text
    assert "ip saddr '{ 10.0.0.1, 10.0.0.2 }' accept" in text
