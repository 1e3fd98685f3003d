"""The HTTP guard of the pages: it decides which requests are answered, and adds headers to all answers.

* Only GET and HEAD: nothing here changes the cluster.
* Only known names in the `Host` header. A page of another site whose name has been made to lead here (DNS rebinding)
  sends its own name. Addresses in numbers are no such name.
* Only browsers that have the token, unless a proxy lets people in: other accounts of this machine reach its ports, too.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, unquote

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ALWAYS = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


class Guard:
    """ASGI application that passes only allowed requests to another one."""

    def __init__(
        self, app: ASGIApp, names: Iterable[str], token: str | None, cookie: str = "elasticctl", secure: bool = False
    ) -> None:
        """`names`: allowed in the `Host` header.

        `token`: None: no token is required. `cookie`: name of the token's cookie, since browsers send cookies to all
        ports of a machine. `secure`: the pages are served by TLS.
        """
        self._app = app
        self._names = frozenset(name.lower() for name in names)
        self._token = token
        self._cookie = cookie
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *ALWAYS]
            await send(message)

        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Response | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if not self._is_known(headers.get(b"host", b"").decode("latin-1")):
            text = f"This server answers to {', '.join(sorted(self._names))}; elasticctl web --name NAME adds a name.\n"
            return PlainTextResponse(text, 421)
        if scope["method"] not in METHODS:
            return PlainTextResponse("These pages are read only.\n", 405, {"Allow": ", ".join(METHODS)})
        return None if self._token is None else self._without_token(scope, headers, self._token)

    def _is_known(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True

    def _without_token(self, scope: Scope, headers: dict[bytes, bytes], token: str) -> Response | None:
        """Return None if the request has the token in its cookie or header; if its address has the token, an answer that
        sets the cookie.
        """
        kind, _, bearer = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if self._in_cookie(headers) or (kind.lower() == "bearer" and _same(bearer, token)):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=20)
        if not _same(next(iter(query.pop("token", [])), ""), token):
            return PlainTextResponse(
                "Open the address that `elasticctl web` has printed: it ends with the token that this page lacks.\n",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        rest = "&".join(f"{quote(name)}={quote(value)}" for name, values in query.items() for value in values)
        path = "/" + quote(unquote(scope["path"]).lstrip("/\\"))  # `//host` would lead to another site
        answer = RedirectResponse(f"{path}?{rest}" if rest else path, 303, {"Cache-Control": "no-store"})
        # Lax: a link in a chat or a mail opens the page; other sites cannot read it all the same.
        answer.set_cookie(self._cookie, token, path="/", secure=self._secure, httponly=True, samesite="lax")
        return answer

    def _in_cookie(self, headers: dict[bytes, bytes]) -> bool:
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        found = cookies.get(self._cookie)
        return found is not None and _same(found.value, self._token or "")


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())
