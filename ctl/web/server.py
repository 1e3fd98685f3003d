"""The application: which address gives which page or document."""

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
from ...protocol.messages import (
    Controllers,
    GetControllers,
    GetEnded,
    GetJob,
    GetJobs,
    GetPolicy,
    GetQuotas,
    JobFound,
    PolicyInUse,
    QuotasFound,
)
from ..context import DECIDED_WITHIN_S, Context
from . import documents
from .tails import Stories, Tails
from .upstream import Upstream

STATIC = Path(__file__).with_name("static")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
PAGES = ("/", "/jobs/{job}", "/history", "/quota", "/health")
STATUS = {UserError: 404, NotAllowed: 403, RequestRefused: 409, ClusterUnreachable: 503}
EXPLAINED_S = 10.0  # an explanation costs the controller many decisions
LOG_S = 1.0
HISTORY_PAGE = 200
LONGEST_NAME = 256  # characters of a job's name or of the mark of a page


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
    """The endpoints of documents."""

    def __init__(self, connect: Callable[[], Context], viewer: str) -> None:
        self._upstream = Upstream(connect)
        self._viewer = viewer
        self._tails = Tails()
        self._stories = {lane: Stories() for lane in ("cluster", "jobs")}

    async def cluster(self, request: Request) -> Response:
        def work(shared: Context) -> bytes:
            return _encoded(documents.cluster(shared.client.jobs(GetJobs()), shared.client.servers()))

        return await self._answer("cluster", ("cluster",), work)

    async def job(self, request: Request) -> Response:
        job = _name(request)

        def work(shared: Context) -> bytes:
            found = shared.ask(GetJob(job=job), JobFound)
            return _encoded(documents.job(found, self._stories["jobs"].of(shared, found.job.job)))

        return await self._answer("jobs", ("job", job), work)

    async def explain(self, request: Request) -> Response:
        job = _name(request)

        def work(shared: Context) -> bytes:
            found = shared.ask(GetJob(job=job, explain=True), JobFound, DECIDED_WITHIN_S)
            return _encoded(documents.explanation(found))

        return await self._answer("explain", ("explain", job), work, EXPLAINED_S)

    async def log(self, request: Request) -> Response:
        job = _name(request)
        tail = request.query_params.get("tail", "")
        after = request.query_params.get("after", "0")
        number = int(after) if after.isascii() and after.isdecimal() and len(after) < 16 else 0
        seen = await self._upstream.get("logs", ("log", job), lambda shared: self._tails.of(job).read(shared), LOG_S)
        return self._response(seen.age_s, seen.trouble, _encoded(seen.value.after(tail, number)))

    async def history(self, request: Request) -> Response:
        after = request.query_params.get("after", "")[:LONGEST_NAME]

        def work(shared: Context) -> bytes:
            return _encoded(documents.ended(shared.client.jobs(GetEnded(after=after), HISTORY_PAGE)))

        return await self._answer("jobs", ("history", after), work)

    async def quota(self, request: Request) -> Response:
        def work(shared: Context) -> bytes:
            return _encoded(documents.quotas(shared.ask(GetQuotas(), QuotasFound)))

        return await self._answer("cluster", ("quota",), work)

    async def health(self, request: Request) -> Response:
        def work(shared: Context) -> bytes:
            controllers = shared.ask(GetControllers(), Controllers)
            policy = shared.ask(GetPolicy(), PolicyInUse)
            events = self._stories["cluster"].of(shared, None)
            return _encoded(documents.health(shared.client.servers(), controllers, policy, events))

        return await self._answer("cluster", ("health",), work)

    async def _answer(
        self, lane: str, key: Hashable, work: Callable[[Context], bytes], interval_s: float | None = None
    ) -> Response:
        """Return a document. Each lane has a connection of its own."""
        seen = await (
            self._upstream.get(lane, key, work)
            if interval_s is None
            else self._upstream.get(lane, key, work, interval_s)
        )
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
