"""An etcd without authentication is refused, unless the configuration permits it."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from elasticd.controller.store.etcd_connection import OpenStore
from elasticd.controller.store.interface import Put, StoreUnavailable


def test_an_etcd_that_answers_without_credentials_is_refused_with_what_to_do(etcds: Any) -> None:
    with closing(etcds.of("etcd").store("/elasticctl/open", insecure=False)) as store:
        for call in (lambda: store.get("/a"), store.begin, lambda: store.grant(5), lambda: store.claim((), ())):
            with pytest.raises(OpenStore, match=r"answers without authentication.*auth enable.*insecure: true"):
                call()
    with closing(etcds.of("etcd").store("/elasticctl/open", insecure=True)) as store:
        store.begin()
        assert store.commit((), (Put("/a", b"1"),)) is not None


@pytest.mark.parametrize("kind", ["etcd-tls", "etcd-certificates"])
def test_an_etcd_that_asks_for_a_password_or_a_certificate_is_used(etcds: Any, kind: str) -> None:
    with closing(etcds.of(kind).store("/elasticctl/closed")) as store:
        store.begin()
        revision = store.commit((), (Put("/a", b"1"),))
        assert revision is not None
        with closing(store.watch("", revision)) as watch:
            assert watch.next(60.0) is not None


@pytest.mark.parametrize(
    ("kind", "lacking"),
    [("etcd-tls", {"user": "", "password": ""}), ("etcd-certificates", {"cert": None, "key": None})],
)
def test_without_its_credentials_a_controller_gets_nowhere(etcds: Any, kind: str, lacking: dict[str, Any]) -> None:
    with closing(etcds.of(kind).store("/elasticctl/closed", **lacking)) as store, pytest.raises(StoreUnavailable):
        store.get("/a")


def test_a_member_that_is_away_is_not_taken_for_an_open_one(etcds: Any) -> None:
    away = etcds.of("etcd").store("/elasticctl/open", insecure=False, endpoints=("127.0.0.1:1",))
    with closing(away) as store, pytest.raises(StoreUnavailable, match="cannot be reached"):
        store.get("/a")
