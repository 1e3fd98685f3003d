"""Captures every frame of a switch, and prints a summary since the last one for each line of its standard input."""

import collections
import json
import select
import socket
import struct
import sys

ETH_P_ALL, ETH_P_IP = 3, 0x0800
PATTERNS = {
    "parameter": struct.pack("<f", 1234.5678) * 4,
    "gradient": struct.pack("<f", 4321.125) * 4,
}

cable = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
cable.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
seen: "collections.Counter[str]" = collections.Counter()
while True:
    ready, _, _ = select.select([cable, sys.stdin.buffer.raw], [], [])
    if cable in ready:
        frame, (port, *_) = cable.recvfrom(1 << 17)
        for name, pattern in PATTERNS.items():
            if pattern in frame:
                seen[name] += 1
        if frame[12:14] == struct.pack("!H", ETH_P_IP):
            header = 14 + 4 * (frame[14] & 15)
            source, target = socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34])
            ports = struct.unpack("!HH", frame[header : header + 4]) if frame[23] in (6, 17) else (0, 0)
            kind = {1: "icmp", 6: "tcp", 17: "udp"}.get(frame[23], str(frame[23]))
            seen[f"{kind} {source}:{ports[0]} {target}:{ports[1]}"] += 1
    elif sys.stdin.buffer.raw in ready:
        if not sys.stdin.buffer.raw.read(1):
            break
        print(json.dumps(seen), flush=True)
        seen.clear()
