"""The web application: its routes to pages and documents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Hashable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ...protocol.errors import ClusterUnreachable, ElasticError, NotAllowed, RequestRefused, UserError
from ..context import Context
from ..screens import sources
from ..screens.forecasts import FORECAST_S, forecast
from ..screens.tails import Stories, Tails
from ..screens.upstream import INTERVAL_S, Upstream
from . import documents

STATIC = Path(__file__).with_name("static")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PAGES = ("/", "/jobs/{job}", "/history", "/quota", "/health")
STATUS = {UserError: 404, NotAllowed: 403, RequestRefused: 409, ClusterUnreachable: 503}
LONGEST_NAME = 256  # characters of a job's name, or of the cursor of a page


def application(connect: Callable[[], Context], viewer: str) -> Starlette:
    """Return the application. `connect`: makes a context for one thread. `viewer`: the user whose jobs come first."""
    pages = Pages(connect, viewer)
    index = _file("index.html")
    files = [Route(f"/static/{path.name}", _file(path.name)) for path in sorted(STATIC.iterdir())]
    return Starlette(
        routes=[
            *(Route(path, index) for path in PAGES),
            *files,
            Route("/api/cluster", pages.cluster),
            Route("/api/jobs/{job}", pages.job),
            Route("/api/jobs/{job}/explain", pages.explain),
            Route("/api/jobs/{job}/starts", pages.starts),
            Route("/api/jobs/{job}/log", pages.log),
            Route("/api/history", pages.history),
            Route("/api/quota", pages.quota),
            Route("/api/health", pages.health),
        ],
        middleware=[Middleware(GZipMiddleware, minimum_size=1000, compresslevel=4)],
        exception_handlers={ElasticError: _refused},
    )


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint of a file; browsers keep it, and ask whether it has changed."""
    path = STATIC / name
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}

    async def endpoint(request: Request) -> Response:
        if request.headers.get("if-none-match", "").removeprefix("W/") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=f"{TYPES[path.suffix]}; charset=utf-8")

    return endpoint


async def _refused(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), 500)
    return JSONResponse({"error": str(error)}, status, {"Cache-Control": "no-store"})


class Pages:
    """Endpoints that answer with documents."""

    def __init__(self, connect: Callable[[], Context], viewer: str) -> None:
        self._upstream = Upstream(connect)
        self._viewer = viewer
        self._tails = Tails()
        self._stories = {thread: Stories() for thread in ("cluster", "jobs")}

    async def cluster(self, request: Request) -> Response:
        return await self._answer("cluster", ("cluster",), lambda shared: documents.cluster(sources.cluster(shared)))

    async def job(self, request: Request) -> Response:
        job, stories = _name(request), self._stories["jobs"]
        return await self._answer(
            "jobs", ("job", job), lambda shared: documents.job(*sources.job(shared, job, stories))
        )

    async def explain(self, request: Request) -> Response:
        job = _name(request)
        return await self._answer(
            "explain",
            ("explain", job),
            lambda shared: documents.explanation(sources.explained(shared, job)),
            sources.EXPLAINED_S,
        )

    async def starts(self, request: Request) -> Response:
        job = _name(request)
        return await self._answer(
            "forecasts", ("starts", job), lambda shared: {"starts": forecast(shared, job)}, FORECAST_S
        )

    async def log(self, request: Request) -> Response:
        job = _name(request)
        tail = request.query_params.get("tail", "")
        after = request.query_params.get("after", "0")
        number = int(after) if after.isascii() and after.isdecimal() and len(after) < 16 else 0
        seen = await self._upstream.get("logs", ("log", job), self._tails.of(job).read, sources.LOG_S)
        return self._response(seen.age_s, seen.trouble, _encoded(seen.value.after(tail, number)))

    async def history(self, request: Request) -> Response:
        after = request.query_params.get("after", "")[:LONGEST_NAME]
        return await self._answer(
            "jobs", ("history", after), lambda shared: documents.ended(sources.ended(shared, after))
        )

    async def quota(self, request: Request) -> Response:
        return await self._answer("cluster", ("quota",), lambda shared: documents.quotas(sources.quotas(shared)))

    async def health(self, request: Request) -> Response:
        stories = self._stories["cluster"]
        return await self._answer(
            "cluster", ("health",), lambda shared: documents.health(sources.health(shared, stories))
        )

    async def _answer(
        self, thread: str, key: Hashable, work: Callable[[Context], dict[str, Any]], interval_s: float = INTERVAL_S
    ) -> Response:
        """Return a document, which is encoded once for all viewers. Each thread has a connection of its own."""
        seen = await self._upstream.get(thread, key, lambda shared: _encoded(work(shared)), interval_s)
        return self._response(seen.age_s, seen.trouble, seen.value)

    def _response(self, age_s: float, trouble: str, document: bytes) -> Response:
        head = {"age_s": round(age_s, 1), "trouble": trouble, "viewer": self._viewer}
        body = b'{"head":' + _encoded(head) + b',"data":' + document + b"}"
        return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/json")


def _name(request: Request) -> str:
    name = str(request.path_params["job"])
    if len(name) > LONGEST_NAME:
        raise UserError(f"{name[:40]}…: no job has so long a name")
    return name


def _encoded(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
