"""Read the clock of another machine with an ICMP timestamp request, which its kernel answers without any login.

Slurm cannot say how wrong a clock is: it only rejects what was sent with a wrong time.
"""

from __future__ import annotations

import os
import socket
import struct
import time

TIMEOUT_S = 2.0
ATTEMPTS = 3
MAX_TRAVEL_MS = 500
"""Time for question and answer beyond which the result is not used: it may be wrong by half of this."""
_REQUEST, _ANSWER = 13, 14
_DAY_MS = 86_400_000
_PACKET = struct.Struct("!BBHHHIII")
# The first byte of an IPv4 header has the number of its 32-bit words in the lower half.
_WORDS = 0x0F
_NOT_STANDARD = 1 << 31


def print_offset(address: str) -> int:
    """Print how many seconds this node's clock is ahead of another machine's; fail if that does not answer."""
    offset_s = measure_offset(address)
    if offset_s is None:
        return 1
    print(f"offset {offset_s:.3f}")
    return 0


def measure_offset(address: str) -> float | None:
    """Return how many seconds this machine's clock is ahead of another's, within half a day; None without an answer.

    Needs the right to open raw sockets.
    """
    try:
        # Answers come from an address, not from a name.
        resolved = socket.gethostbyname(address)
    except OSError:
        return None
    for attempt in range(ATTEMPTS):
        offset_s = _ask(resolved, attempt)
        if offset_s is not None:
            return offset_s
    return None


def compare(sent_ms: int, theirs_ms: int, received_ms: int) -> float | None:
    """Return how many seconds our clock is ahead; None if the answer took too long, or this process to read it.

    Times are milliseconds of the day, which begins again at midnight.
    """
    travel_ms = (received_ms - sent_ms) % _DAY_MS
    if travel_ms > MAX_TRAVEL_MS:
        return None
    ahead_ms = (sent_ms + travel_ms / 2 - theirs_ms) % _DAY_MS
    return (ahead_ms - _DAY_MS if ahead_ms > _DAY_MS / 2 else ahead_ms) / 1000


def _ask(address: str, sequence: int) -> float | None:
    identifier = os.getpid() & 0xFFFF
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as connection:
        deadline = time.monotonic() + TIMEOUT_S
        sent_ms = _read_day_ms()
        try:
            connection.sendto(_render_request(identifier, sequence, sent_ms), (address, 0))
        except OSError:
            # No route, or a firewall of this machine.
            return None
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            try:
                packet, (sender, _) = connection.recvfrom(1024)
            except (TimeoutError, socket.timeout):  # noqa: UP041  # Two classes in Python 3.9.
                return None
            received_ms = _read_day_ms()
            body = packet[(packet[0] & _WORDS) * 4 :]
            if sender != address or len(body) < _PACKET.size:
                continue
            kind, _, _, theirs, number, _, _, transmitted = _PACKET.unpack_from(body)
            if (kind, theirs, number) == (_ANSWER, identifier, sequence) and not transmitted & _NOT_STANDARD:
                return compare(sent_ms, transmitted, received_ms)
    return None


def _render_request(identifier: int, sequence: int, sent_ms: int) -> bytes:
    fields = (_REQUEST, 0, 0, identifier, sequence, sent_ms, 0, 0)
    total = sum(struct.unpack("!10H", _PACKET.pack(*fields)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return _PACKET.pack(*fields[:2], ~total & 0xFFFF, *fields[3:])


def _read_day_ms() -> int:
    return time.time_ns() // 1_000_000 % _DAY_MS
