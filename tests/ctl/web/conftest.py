"""The pages over HTTP, from a cluster that a test sets."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from ..screens_world import World

PATIENCE_S = 60.0


class Site:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
        """Return the answer, with `body` read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, headers=given)
        answer = connection.getresponse()
        answer.body = answer.read()  # type: ignore[attr-defined]
        connection.close()
        return answer

    def json(self, path: str, code: int = 200) -> Any:
        answer = self.get(path)
        assert answer.status == code, (answer.status, answer.body)  # type: ignore[attr-defined]
        return json.loads(answer.body)  # type: ignore[attr-defined]


@contextmanager
def served(app: Any) -> Iterator[Site]:
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none", http="h11"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.01)
    yield Site(server.servers[0].sockets[0].getsockname()[1])
    server.should_exit = True
    thread.join(PATIENCE_S)


@pytest.fixture
def serve() -> Iterator[Callable[..., Site]]:
    """Starts the pages of a world. Options as those of the guard."""
    from elasticd.ctl.web.guard import Guard
    from elasticd.ctl.web.server import application

    with ExitStack() as stack:

        def start(world: World, token: str | None = None, names: tuple[str, ...] = ("localhost",)) -> Site:
            return stack.enter_context(served(Guard(application(world.connect, "alice"), names, token)))

        yield start
