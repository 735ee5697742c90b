"""The programs of perftest that measure one link: their command lines, and what they print."""

from __future__ import annotations

from collections.abc import Mapping

BANDWIDTH, LATENCY = "ib_write_bw", "ib_write_lat"
PROGRAMS = (BANDWIDTH, LATENCY)
FIRST_TCP_PORT = 18515
"""The port at which perftest's server waits for the client; each program of each link has its own."""
# Several connections and large messages: with less, one core limits the bandwidth of a 400 Gb/s port.
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    BANDWIDTH: ("--report_gbits", "-q", "4", "-s", "1048576", "-D", "3"),
    LATENCY: ("-s", "2", "-n", "1000"),
}
_COLUMNS = {BANDWIDTH: "BW average[Gb/sec]", LATENCY: "t_typical[usec]"}
_HEADER = "#bytes"


def build_command(program: str, port: str, gid: int | None, tcp_port: int) -> list[str]:
    """Return the server's command line for a port such as `mlx5_0:1`; the client adds the server's name."""
    device, _, number = port.partition(":")
    index = [] if gid is None else ["-x", str(gid)]
    # -F: the CPU's frequency may vary, which perftest takes for an error.
    return [program, "-F", "-d", device, "-i", number, *index, "-p", str(tcp_port), *_OPTIONS[program]]


def parse_result(program: str, output: str) -> float | None:
    """Return Gb/s or microseconds of the last row; None if the output has none."""
    place, value = None, None
    for line in output.splitlines():
        words = line.split()
        if _HEADER in line and _COLUMNS[program] in line:
            place = _find_place(line, _COLUMNS[program])
        elif place is not None and len(words) > place and words[0].isdigit() and words[1].isdigit():
            value = _parse_float(words[place])
    return value


def find_error(output: str) -> str:
    """Return perftest's last line that is not a part of its table, for a message."""
    lines = [line.strip() for line in output.splitlines() if line.strip(" -*")]
    return lines[-1] if lines else "no output"


def _find_place(header: str, column: str) -> int:
    """Return the number of a column: those before it begin with # or end with a unit in brackets."""
    before = header[: header.index(column)]
    return before.count("[") + before.count("#")


def _parse_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
