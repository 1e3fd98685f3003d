"""Relay on a lab's switch that delays frames or drops them: a substitute for netem, which many kernels lack.

    relay.py CARD...        a packet socket on each card; rules arrive as lines of JSON on standard input

A host sends a frame through the relay by addressing it to one of the relay's addresses (`links`), which encode network, sender
and receiver. A rule is ``{"link": [network, from, to], "delay_ms": 20, "jitter_ms": 5, "loss": 0.01}``; without a rule a frame
is forwarded at once. Frames of a link keep their order. Frames keep their virtio header, so that the kernel does any
segmentation and checksums still due (``PACKET_VNET_HDR``). The relay ends at the end of its standard input.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import socket
import sys
import time
from typing import Any

EVERY_PROTOCOL = 3
SOL_PACKET, PACKET_VNET_HDR = 263, 15
HEADER = 10  # bytes of the virtio header before each frame
LARGEST = 1 << 17
STDIN = 0
MOST_KEPT = 20_000  # delayed frames; more are dropped, as in a router

Link = tuple[int, int, int]


def main(cards: list[str]) -> None:
    sockets = []
    for card in cards:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
        made.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        made.bind((card, 0))
        made.setblocking(False)
        sockets.append(made)
    print("listens", flush=True)
    rules: dict[Link, dict[str, Any]] = {}
    due: list[tuple[float, int, int, bytes]] = []
    last: dict[Link, float] = {}
    number, rest, rng = 0, b"", random.Random(0)
    while True:
        wait_s = max(0.0, due[0][0] - time.monotonic()) if due else None
        sources: list[socket.socket | int] = [*sockets, STDIN]
        for ready in select.select(sources, [], [], wait_s)[0]:
            if isinstance(ready, int):
                said = os.read(STDIN, LARGEST)
                if not said:
                    return
                *lines, rest = (rest + said).split(b"\n")
                for line in lines:
                    rule = json.loads(line)
                    rules[tuple(rule["link"])] = rule
                continue
            try:
                frame, (_, _, kind, *_) = ready.recvfrom(LARGEST)
            except (BlockingIOError, OSError):
                continue
            link = _link(frame)
            if kind == socket.PACKET_OUTGOING or link is None:
                continue
            rule = rules.get(link, {})
            if rng.random() < rule.get("loss", 0.0) or len(due) >= MOST_KEPT:
                continue
            late_s = (rule.get("delay_ms", 0.0) + rng.uniform(0.0, rule.get("jitter_ms", 0.0))) / 1e3
            last[link] = at = max(time.monotonic() + late_s, last.get(link, 0.0))
            number += 1
            to = bytes((2, 0x77, 0, 0, link[0], link[2]))
            heapq.heappush(due, (at, number, sockets.index(ready), frame[:HEADER] + to + frame[HEADER + 6 :]))
        while due and due[0][0] <= time.monotonic():
            _, _, card_number, frame = heapq.heappop(due)
            try:
                sockets[card_number].send(frame)
            except OSError:  # the host is off, or its queue is full: the frame is lost
                pass


def _link(frame: bytes) -> Link | None:
    """Return network, sender and receiver of a frame sent to one of the relay's addresses; None for other frames."""
    address = frame[HEADER : HEADER + 6]
    return (address[2], address[4], address[5]) if address[:2] == b"\x06\x77" and address[3] == 1 else None


if __name__ == "__main__":
    main(sys.argv[1:])
