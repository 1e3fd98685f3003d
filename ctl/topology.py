"""`elasticctl topology`: the wiring of the servers, as a tree, with the links between their GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..protocol.errors import UserError
from ..protocol.messages import ServerState, ServerView
from ..protocol.model import Gpu, GpuKind, Server
from ..protocol.topology import Link
from ..protocol.wiring import LABELS, GpuLink, Kind, Part, near, pairs, speeds, to_network, tree, wiring_of
from . import completion, render
from .context import JSON, console, of, print_json

if TYPE_CHECKING:
    from rich.tree import Tree

MOST_IN_MATRIX = 16  # most GPUs in a matrix, as more do not fit on a screen
MOST_PAIRS = 8  # most pairs of GPUs that a line names
WORDS = {
    Link.NVLINK: "NVLink, with how many links",
    Link.SWITCH: "PCIe switches",
    Link.BRIDGE: "a host bridge",
    Link.SOCKET: "between sockets (NUMA nodes)",
    Link.NETWORK: "to other servers, by the nearest network card",
}
LEVELS = {Kind.BRIDGE: Link.BRIDGE, Kind.SWITCH: Link.SWITCH}


def add_to(app: typer.Typer) -> None:
    """Register this file's commands."""
    app.command()(topology)


def topology(
    context: typer.Context,
    server: Annotated[
        str | None,
        typer.Argument(
            help="Name of one server: also what lies between its GPUs.",
            show_default=False,
            autocompletion=completion.servers,
        ),
    ] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Draw how the servers are wired: GPUs, PCIe switches, NUMA nodes, network cards, racks."""
    answer = of(context).client.servers()
    found = [view for view in answer.servers if server is None or view.server.server == server]
    if server is not None and not found:
        names = ", ".join(view.server.server for view in answer.servers[:20]) or "none"
        raise UserError(f"there is no server {server}; there are: {names}")
    if as_json:
        print_json({"servers": [document(view) for view in found], "time_s": answer.time_s})
        return
    if not found:
        print("no servers")
        return
    screen = console()
    for drawn in racks(found):
        screen.print(drawn)
    if len(found) == 1:
        for line in between_lines(found[0].server):
            print(line)


# ---------------------------------------------------------------------------------------------------------------- the tree


def racks(views: Sequence[ServerView]) -> Iterator[Tree]:
    """Yield a tree for each rack, and for each server without a known rack."""
    from rich.tree import Tree

    for rack in sorted({view.server.rack for view in views}):
        inside = [view for view in views if view.server.rack == rack]
        if not rack:
            for view in inside:
                top = Tree(server_label(view), guide_style="dim")
                _grow(top, view, tree(view.server))
                yield top
            continue
        top = Tree(_text(f"rack {rack}", "bold", f"{LABELS[Link.NETWORK]} between its servers"), guide_style="dim")
        for view in inside:
            _grow(top.add(server_label(view)), view, tree(view.server))
        yield top


def _grow(on: Tree, view: ServerView, part: Part) -> None:
    server = view.server
    slots = on_slots(server)
    if part.kind is Kind.SERVER and slots:
        used = f", {len(view.used)} in use" if view.used else ""
        on.add(_text(f"{len(server.gpus)} CPU slots", "", f"not bound to processors{used}"))
    for each in part.parts:
        match each.kind:
            case Kind.GPU:
                if not slots:
                    on.add(gpu_label(view, next(gpu for gpu in server.gpus if str(gpu.index) == each.name)))
            case Kind.NIC:
                nic = next(nic for nic in server.wiring.nics if nic.name == each.name)
                on.add(_text(f"NIC {nic.name}", "", nic.pci, speed(nic.bytes_per_s)))
            case Kind.SOCKET:
                _grow(on.add(_text(f"NUMA node {each.name}", "", _cpus(server, each))), view, each)
            case _:
                level = LABELS[LEVELS[each.kind]]
                _grow(on.add(_text(f"{each.kind.value} {each.name}", "", level)), view, each)


def on_slots(server: Server) -> bool:
    """Return whether the server offers CPU slots, and no GPU."""
    return bool(server.gpus) and all(gpu.kind is GpuKind.CPU and not gpu.uuid for gpu in server.gpus)


def _cpus(server: Server, node: Part) -> str:
    """Return the processors near a NUMA node, if all its GPUs report the same."""
    ranges = {gpu.cpus for gpu in server.wiring.gpus if str(gpu.node) == node.name}
    return f"CPUs {ranges.pop()}" if len(ranges) == 1 and ranges != {""} else ""


def server_label(view: ServerView) -> Any:
    """Return the label of a server: its GPUs, state and trouble."""
    server = view.server
    state = "" if view.state is ServerState.ALIVE else view.state.value
    kinds = types(server)
    has = ", ".join(f"{count} x {name}" for name, count in kinds.items())
    if len(kinds) > 1:
        has = f"{len(server.gpus)} GPUs of {len(kinds)} types"
    label = _text(f"server {server.server}", "bold", has, state)
    if any(gpu.uuid and gpu.kind is GpuKind.CPU for gpu in server.gpus):
        label.append("\nworkers compute on the CPU here (worker_device)", "yellow")
    if view.trouble:
        label.append(f"\n{render.printable(view.trouble)}", "red")
    return label


def types(server: Server) -> dict[str, int]:
    """Return the number of GPUs of each type, by name and memory."""
    found: dict[str, int] = {}
    for gpu in server.gpus:
        name = render.printable(gpu.name) + (f", {size(gpu.memory_bytes)}" if gpu.memory_bytes else "")
        found[name] = found.get(name, 0) + 1
    return found


def gpu_label(view: ServerView, gpu: Gpu) -> Any:
    """Return the label of a GPU: its type if the server has several, its PCIe speed, its job and its troubles."""
    wiring = wiring_of(view.server, gpu.index)
    parts = [wiring.pci, speed(wiring.pcie_bytes_per_s)]
    if len(types(view.server)) > 1:
        parts = [render.printable(gpu.name), size(gpu.memory_bytes) if gpu.memory_bytes else "", *parts[1:]]
    if not wiring.pci:
        parts.append("does not answer, or does not tell its place")
    label = _text(f"GPU {gpu.index}", "green", *parts)
    if gpu.index in view.used:
        label.append(f"  {render.printable(view.used[gpu.index])}", "bold")
    codes = [trouble.code for trouble in view.troubles if trouble.gpu == gpu.index]
    if gpu.index in view.barred and not codes:
        codes = ["no new work"]
    if codes:
        label.append(f"  {render.printable(', '.join(codes))}", "red")
    return label


def _text(title: str, style: str, *details: str) -> Any:
    from rich.text import Text

    text = Text(title, style=style)
    for detail in details:
        if detail:
            text.append(f"  {detail}", "none")
    return text


# ------------------------------------------------------------------------------------------------------- between the GPUs


def between_lines(server: Server) -> Iterator[str]:
    """Yield the links between all pairs of GPUs, the nearest network cards, and the speed of each level."""
    wired = {wiring.index for wiring in server.wiring.gpus}
    shown = [gpu for gpu in server.gpus if gpu.uuid and gpu.index in wired]
    if not shown:
        return
    found: dict[tuple[int, int], GpuLink] = {}
    for a, b, way in pairs(server):
        found[a.index, b.index] = found[b.index, a.index] = way
    yield ""
    if len(shown) <= MOST_IN_MATRIX:
        yield " " * 7 + "".join(f"{gpu.index:>5}" for gpu in shown) + ("  near" if server.wiring.nics else "")
        for gpu in shown:
            cells = "".join(f"{found[gpu.index, b.index].label if b is not gpu else '-':>5}" for b in shown)
            cards = ", ".join(nic.name for nic in near(server, gpu.index))
            yield f"GPU {gpu.index:<3}{cells}  {cards}".rstrip()
        yield ""
    for level, (slowest, fastest) in speeds(server).items():
        text = speed(slowest) if slowest == fastest else f"{speed(slowest)} to {speed(fastest)}"
        yield f"{LABELS[level]:<3} {WORDS[level]:<46} {text or 'speed not told'}"
    yield from peer_lines(server)
    if any(way.one_gpu for way in found.values()):
        yield "MIG parts of one GPU"
    yield "Speeds: in one direction, as driver and kernel tell them; not measured."


def peer_lines(server: Server) -> Iterator[str]:
    """Yield the GPUs that reach each other's memory directly, where the driver reports them."""
    wired = {each.index: each.peers for each in server.wiring.gpus if each.peers is not None and not each.parent}
    whole = list(combinations(sorted(wired), 2))
    works = [(a, b) for a, b in whole if b in (wired[a] or ())]
    if not whole:
        return
    if not works:
        yield "P2P does not work here: transfers pass through the host's memory"
    elif len(works) == len(whole):
        yield "P2P works between all GPUs"
    else:
        named = ", ".join(f"{a}-{b}" for a, b in works[:MOST_PAIRS])
        yield f"P2P works between {named}" + (
            f" and {len(works) - MOST_PAIRS} more pairs" if len(works) > MOST_PAIRS else ""
        )


def speed(bytes_per_s: float) -> str:
    """Return "31.5 GB/s"; "": unknown."""
    return f"{bytes_per_s / 1e9:.3g} GB/s" if bytes_per_s else ""


def size(memory_bytes: int) -> str:
    """Return "40 GiB"."""
    return f"{memory_bytes / (1 << 30):.3g} GiB"


# -------------------------------------------------------------------------------------------------------- for programs


def document(view: ServerView) -> dict[str, Any]:
    """Return a server as a document for programs."""
    server = view.server
    wired = {wiring.index: render.plain(wiring) for wiring in server.wiring.gpus}
    return {
        "server": server.server,
        "address": server.address,
        "rack": server.rack or None,
        "state": view.state.value,
        "driver": server.wiring.driver or None,
        "gpus": [
            {
                **render.plain(gpu),
                **wired.get(gpu.index, {}),
                "job": view.used.get(gpu.index),
                "near_nics": [nic.name for nic in near(server, gpu.index)],
                "network_bytes_per_s": to_network(server, gpu.index),
            }
            for gpu in server.gpus
        ],
        "nics": [
            {
                **render.plain(nic),
                "near_gpus": [gpu.index for gpu in server.gpus if nic in near(server, gpu.index)],
            }
            for nic in server.wiring.nics
        ],
        "links": [
            {
                "gpus": [a.index, b.index],
                "level": LABELS[way.level] if way.known else None,
                "nvlinks": way.nvlinks,
                "bytes_per_s": way.bytes_per_s,
            }
            for a, b, way in pairs(server)
        ],
        "tree": _plain(tree(server)),
    }


def _plain(part: Part) -> dict[str, Any]:
    return {"kind": part.kind.value, "name": part.name, "parts": [_plain(each) for each in part.parts]}
