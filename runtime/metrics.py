"""HTTP server of a daemon's metrics in the Prometheus format.

Theory of operation
-------------------
A daemon's loop must neither wait for a reader nor fail because of one. So a few threads serve readers, each
for a few seconds at most, and share no data with the loop but published figures. A reader marks figures as *wanted* and wakes
the loop, which publishes plain values in its next turn. If the loop is late, the last figures are served, with their age.
Figures younger than FRESH_S are served again, so many readers cost the loop no more than one.

The server speaks HTTP without encryption, and answers one path (`PATH`). If the operator has configured a token, each reader must
send it; without one, every peer that reaches the address reads all figures (docs/metrics.md lists them). So the server listens
only where an operator has configured an address.
"""

from __future__ import annotations

import hmac
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import HTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import MetricsHandler
from prometheus_client.registry import Collector

from ..protocol.errors import OperatorError
from ..protocol.figures import Distribution, Figure, Kind
from .config import host_and_port
from .directories import read_secret

log = logging.getLogger(__name__)

PREFIX = "elasticctl_"
PATH = "/metrics"
MOST_TOKEN = 1024  # characters
AGE = "figures_age_seconds"
FRESH_S = 1.0  # age up to which figures are served again
PATIENCE_S = 2.0  # for the loop to publish
READER_S = 5.0  # for one read or write of a connection; a whole request has twice as long
MOST_READERS = 8  # at once; more are disconnected


class Exporter:
    """Metrics server at one address. The loop calls `publish`; all else runs in other threads."""

    def __init__(self, address: str, wake: Callable[[], None], token: str = "") -> None:
        """wake: makes the loop turn once more. token: readers have to send it; "": no token is needed. Raises OperatorError if
        the address cannot be bound."""
        self.wanted = False  # set when the loop is to publish
        self._wake = wake
        self._changed = threading.Condition()
        self._figures: Sequence[Figure] = ()
        self._made_s = float("-inf")
        registry = CollectorRegistry()
        registry.register(_Collector(self._fresh))
        ProcessCollector(registry=registry)
        host, port = host_and_port("metrics_address", address)
        try:
            self._server = _Server(host, port, registry, token)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise OperatorError(f"metrics_address: {address}: {reason}") from None
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        log.info(
            "metrics at http://%s:%d%s, for whoever %s",
            f"[{host}]" if ":" in host else host,
            self.port,
            PATH,
            "has the token" if token else "reaches that",
        )

    def publish(self, figures: Sequence[Figure]) -> None:
        """Replace the figures that are served."""
        with self._changed:
            self.wanted = False
            self._figures, self._made_s = figures, time.monotonic()
            self._changed.notify_all()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _fresh(self) -> tuple[Sequence[Figure], float]:
        """Return the figures, and their age (s), after giving the loop PATIENCE_S to renew old ones."""
        with self._changed:
            asked_s = time.monotonic()
            if asked_s - self._made_s > FRESH_S:
                self.wanted = True
                try:
                    self._wake()
                except OSError:
                    pass  # the loop has ended
                self._changed.wait_for(lambda: self._made_s >= asked_s, PATIENCE_S)
            return self._figures, time.monotonic() - self._made_s


class _Collector(Collector):
    """Converts figures to the metric families of prometheus_client."""

    def __init__(self, fresh: Callable[[], tuple[Sequence[Figure], float]]) -> None:
        self._fresh = fresh

    def collect(self) -> Iterator[Metric]:
        figures, age_s = self._fresh()
        for figure in figures:
            yield _family(figure)
        if figures:
            yield GaugeMetricFamily(
                PREFIX + AGE, "How old these figures are: more than a second if the loop is busy.", age_s
            )

    def describe(self) -> list[Metric]:
        return []  # otherwise prometheus_client collects at registration, before the loop runs


def _family(figure: Figure) -> Metric:
    name = PREFIX + figure.name
    if figure.kind is Kind.HISTOGRAM:
        family = HistogramMetricFamily(name, figure.text, labels=figure.labels)
        for labels, value in figure.samples:
            assert isinstance(value, Distribution)
            bounds = [*(repr(bound) for bound in value.bounds), "+Inf"]
            family.add_metric(labels, list(zip(bounds, map(float, value.below), strict=True)), value.sum)
        return family
    kind: Any = CounterMetricFamily if figure.kind is Kind.COUNTER else GaugeMetricFamily
    simple = kind(name, figure.text, labels=figure.labels)
    for labels, value in figure.samples:
        simple.add_metric(labels, value)
    found: Metric = simple
    return found


def read_token(file: str | None) -> str:
    """Return the token in the configured file; "" if none is configured. Raises OperatorError if the file is unusable."""
    if file is None:
        return ""
    path = Path(file).expanduser()
    try:
        token = read_secret(path).decode("ascii").strip()
    except OperatorError as error:
        raise OperatorError(f"metrics_token_file: {error}") from None
    except UnicodeDecodeError:
        token = ""
    if not 0 < len(token) <= MOST_TOKEN or not token.isprintable() or " " in token:
        raise OperatorError(
            f"metrics_token_file: {path}: a token is one word of 1 to {MOST_TOKEN} ASCII characters: `openssl rand -hex 32`"
        )
    return token


class _Handler(MetricsHandler):
    """Answers one path, and only requests with the token if there is one."""

    timeout = READER_S
    server_version = "elasticctl"
    token = ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != PATH:
            self._refuse(404, f"figures are at {PATH}\n")
        elif self.token and not self._has_token():
            self._refuse(401, "a token is needed: Authorization: Bearer TOKEN\n", ("WWW-Authenticate", "Bearer"))
        else:
            super().do_GET()

    def _has_token(self) -> bool:
        kind, _, sent = (self.headers.get("Authorization") or "").partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(sent.strip().encode(), self.token.encode())

    def _refuse(self, status: int, text: str, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for name, value in (("Content-Type", "text/plain"), ("Content-Length", str(len(text))), *headers):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text.encode())


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    """HTTP server with few concurrent readers, each with a time limit."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, registry: CollectorRegistry, token: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._free = threading.BoundedSemaphore(MOST_READERS)
        self._since: dict[Any, float] = {}  # when each connection was accepted (monotonic, s)
        super().__init__((host, port), type("Handler", (_Handler,), {"registry": registry, "token": token}))

    def server_bind(self) -> None:
        """Bind without resolving the host's name, as HTTPServer does: the look-up may block."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread can be started
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._since[request] = time.monotonic()
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._since[request]
            self._free.release()

    def service_actions(self) -> None:
        """Disconnect readers over their time limit, even ones that send a byte at a time. Called twice a second."""
        for request, since_s in list(self._since.items()):
            if time.monotonic() - since_s > 2 * READER_S + PATIENCE_S:
                try:
                    request.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # disconnected already

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a reader of the metrics, %s, has gone", client_address, exc_info=True)
