"""The command `elasticctl web`."""

from __future__ import annotations

import ipaddress
import secrets
import socket
from pathlib import Path
from typing import Annotated

import typer

from ...protocol.errors import UserError
from ...runtime.directories import read_secret
from ..context import of, say

PORT = 7780
SHORTEST_TOKEN = 16
MOST_CONNECTIONS = 250


def add_to(app: typer.Typer) -> None:
    """Register this file's command."""
    app.command()(web)


def web(
    context: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: a free one.")] = PORT,
    cert: Annotated[Path | None, typer.Option(help="Certificate for TLS (PEM).", show_default=False)] = None,
    key: Annotated[Path | None, typer.Option(help="The certificate's key (PEM).", show_default=False)] = None,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="A proxy speaks TLS and decides who comes in; no token is wanted.")
    ] = False,
    name: Annotated[
        list[str] | None,
        typer.Option(help="Name under which browsers reach it; can be repeated.", show_default=False),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that browsers need; otherwise a new one.", show_default=False),
    ] = None,
) -> None:
    """Show the cluster in a browser: GPUs, jobs, logs, reasons. Nothing can be changed there."""
    try:
        import uvicorn

        from .guard import Guard
        from .server import application
    except ImportError:
        raise UserError("web: starlette and uvicorn are not installed: pip install 'elasticctl[web]'") from None
    _check(host, cert, key, behind_proxy)
    shared = of(context)
    viewer, who = shared.viewer()
    token = _token(token_file, behind_proxy)
    listener = _listener(host, port)
    port = listener.getsockname()[1]
    names = {"localhost", socket.gethostname(), *([] if _is_address(host) else [host]), *(name or [])}
    secure = cert is not None
    app = Guard(application(shared.another, viewer), names, token, f"elasticctl-{port}", secure)
    config = uvicorn.Config(
        app,
        ssl_certfile=cert,
        ssl_keyfile=key,
        http="h11",
        ws="none",
        lifespan="off",
        proxy_headers=False,
        server_header=False,
        access_log=False,  # addresses may contain the token
        log_level="warning",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=1,
    )
    at = (name or [host])[0]
    shown = f"[{at}]" if ":" in at else at
    new = f"?token={token}" if token and token_file is None else ""  # a permanent token must not appear in logs
    print(f"{'https' if secure else 'http'}://{shown}:{port}/{new}", flush=True)
    wants = f", with ?token= and the token of {token_file}," if token_file is not None else ""
    say(f"elasticctl: whoever opens this address{wants} sees what {who} sees; Ctrl-C ends it")
    uvicorn.Server(config).run(sockets=[listener])


def _check(host: str, cert: Path | None, key: Path | None, behind_proxy: bool) -> None:
    """Raise UserError where the pages would travel unencrypted, or a file is missing."""
    if (cert is None) != (key is None):
        raise UserError(
            "web: --cert and --key go together (the key for the controller stands before the command: elasticctl --key FILE web)"
        )
    for path in (cert, key):
        if path is not None and not path.is_file():
            raise UserError(f"web: {path}: no such file")
    if cert is None and not behind_proxy and not _is_loopback(host):
        raise UserError(
            f"web: {host} is reached from other machines, and logs would travel there unencrypted: give --cert and --key, or "
            "--behind-proxy where a proxy speaks TLS and decides who comes in"
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _token(path: Path | None, behind_proxy: bool) -> str | None:
    """Return the token that browsers need; None: they need none."""
    if path is None:
        return None if behind_proxy else secrets.token_urlsafe(24)
    token = read_secret(path).decode("latin-1").strip()
    if (
        len(token) < SHORTEST_TOKEN
        or not token.isascii()
        or not token.isprintable()
        or set(token) & set(' ",;\\&?#%+=')
    ):
        raise UserError(f"{path}: a token has at least {SHORTEST_TOKEN} letters, digits, '-' and '_'")
    return token


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(
            f"web: cannot listen on {host}:{port}: {error.strerror or error}; --port takes another"
        ) from None
