"""Commands about keys: keys init, keys add, keys list, keys revoke, on the controller's machine; login, on a user's."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..protocol.errors import ClusterUnreachable, ElasticError, NotAllowed, UserError
from ..protocol.messages import Ping
from ..protocol.principals import CLIENT_ROLES, parse
from .context import JSON, configuration, console, of, print_json, say

if TYPE_CHECKING:
    from .client import Client

DIRECTORY = Path("/etc/elasticctl/keys")
KNOWN_WITHIN_S = 3.0  # a running controller reads its list of keys once a second

Keys = Annotated[
    Path,
    typer.Option("--keys", envvar="ELASTICCTL_KEYS", help="The controller's directory of keys.", metavar="DIR"),
]


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    group = typer.Typer(
        help="Who is known to a controller. For its machine, as root or as its user.", no_args_is_help=True
    )
    group.command("init")(init)
    group.command("add")(add)
    group.command("list")(show)
    group.command("revoke")(revoke)
    app.add_typer(group, name="keys")
    app.command()(login)


def init(keys: Keys = DIRECTORY) -> None:
    """Make the controller's own keys."""
    from ..runtime.keys import KeyDirectory

    pair = KeyDirectory(keys.absolute()).make()
    print(f"made {keys}; the controller's public key is {pair.public.decode()}")


def add(
    principal: Annotated[
        str, typer.Argument(help="user:NAME, reader:NAME, operator:NAME or server:NAME.", metavar="ROLE:NAME")
    ],
    account: Annotated[
        str | None, typer.Option(help="Unix account that their jobs run as (default: NAME).", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where the key goes (default: ROLE-NAME.key).", show_default=False)
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            help="Where the controller listens, to be written into the file: tcp://HOST:PORT; of several all, with commas.",
            show_default=False,
        ),
    ] = None,
    keys: Keys = DIRECTORY,
) -> None:
    """Make a key and register it: the file is for the user, or for the server's /etc/elasticctl."""
    from ..runtime.endpoints import endpoints
    from ..runtime.keys import KeyDirectory

    role, name = parse(principal)
    if address is not None:
        address = ",".join(endpoints(address))
    file = (out or Path(f"{role.value}-{name}.key")).absolute()
    KeyDirectory(keys.absolute()).add(principal, account or "", file, address)
    print(f"{principal} is known; its key is in {file}: hand it over, and delete it here")


def show(keys: Keys = DIRECTORY, as_json: Annotated[bool, JSON] = False) -> None:
    """Show the keys that are registered, and those that are revoked."""
    from rich.markup import escape
    from rich.table import Table

    from ..runtime.keys import KeyDirectory

    known = KeyDirectory(keys.absolute()).principals().known
    if as_json:
        print_json({"known": [{name: getattr(each, name) for name in each.__struct_fields__} for each in known]})
        return
    table = Table("PRINCIPAL", "ACCOUNT", "SINCE", "REVOKED", "PUBLIC KEY", box=None, pad_edge=False)
    for each in known:
        table.add_row(
            each.principal, each.account or "-", _day(each.added_s), _day(each.revoked_s), escape(each.public)
        )
    console().print(table)


def revoke(
    principal: Annotated[str, typer.Argument(help="ROLE:NAME.", metavar="ROLE:NAME")], keys: Keys = DIRECTORY
) -> None:
    """Revoke a key. A running controller cuts its connections within a second or two."""
    from ..runtime.keys import KeyDirectory

    KeyDirectory(keys.absolute()).revoke(principal)
    print(f"{principal} is revoked")


def login(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="The key that an operator has made for you.")],
) -> None:
    """Put a key in its place (~/.config/elasticctl), and remember the cluster."""
    from ..runtime.directories import private_directory, write_secret
    from ..runtime.keys import KeyFile
    from .client import Client

    key = KeyFile.read(file.absolute(), UserError)
    if key.role not in CLIENT_ROLES:
        raise UserError(f"{file} is the key of a {key.role.value}, not of a person")
    address = of(context).controller or key.controller
    if address is None:
        raise UserError(
            f"{file} does not say where the controller is: elasticctl --controller tcp://HOST:PORT login {file}"
        )
    client = Client(address, key)
    home = configuration()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_directory(home)
    write_secret(home / "key", key.text())
    write_secret(home / "cluster.yaml", f"controller: {address}\n".encode())
    try:
        _greet(client)
    except ClusterUnreachable as error:
        say(f"the key is in {home}, but {error}")
    except ElasticError as error:
        say(f"the key is in {home}, but: {error}")
        raise
    finally:
        client.close()
    print(f"{key.role.value}:{key.name} at {address}")


def _greet(client: Client) -> None:
    """Send a ping until the controller accepts the key: a new key is known to the controller a moment later."""
    until_s = time.monotonic() + KNOWN_WITHIN_S
    while True:
        try:
            client.ask(Ping(), timeout_s=3.0)
            return
        except NotAllowed:
            if time.monotonic() >= until_s:
                raise
        time.sleep(0.3)


def _day(time_s: float | None) -> str:
    return "-" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M")
