"""rdma and rdma-errors: the InfiniBand or RoCE ports of the fabric are up, at their rate, and their links are good."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from slurm.health.check import Check, Expected
from slurm.rdma.sysfs import parse_rdma, render_reader, split_lines

WINDOW_S = 3600
# The InfiniBand specification allows 120 symbol errors in an hour, which is a bit error rate of 1e-12. Congestion makes
# ports discard packets, too, so only many of them count; their counter stops at 65535.
LIMITS = {
    "symbol_error": 120,
    "port_rcv_errors": 120,
    "link_error_recovery": 5,
    "local_link_integrity_errors": 1,
    "excessive_buffer_overrun_errors": 1,
    "link_downed": 2,
    "port_xmit_discards": 10_000,
}
"""Growth of each counter within the window that is a problem."""
HISTORY = "/run/muster/rdma-errors"
# Readings are stored at this interval, and every round compares its own with them.
_INTERVAL_S = 300
# The time is that since boot: it never jumps, and begins again when the counters do.
_ERRORS_SCRIPT = f"""\
history=${{HISTORY:-{HISTORY}}}
read -r now _ </proc/uptime
now=${{NOW:-${{now%.*}}}}
mkdir -p "${{history%/*}}"
touch "$history"
reading=$(read_rdma | sed "s/^/$now\\t/")
stored=$(awk -F '\\t' -v oldest=$((now - {WINDOW_S})) '$1 ~ /^[0-9]+$/ && $1 + 0 >= oldest' "$history")
last=$(printf '%s\\n' "$stored" | tail -n 1 | cut -f 1)
printf '%s\\n%s\\n' "$stored" "$reading"
if [ -z "$last" ] || [ $((now - last)) -ge {_INTERVAL_S} ]; then stored="$stored
$reading"; fi
printf '%s\\n' "$stored" | sed '/^$/d' >"$history.new" &&
  mv "$history.new" "$history"
"""


def judge_ports(output: str, expected: Expected) -> list[str]:
    """Return ports that are missing, not active or slower than when the node was set up."""
    ports = {port.name: port for port in parse_rdma(split_lines(output)).ports}
    problems = []
    for name, gbps in expected.rdma.items():
        if name not in ports:
            problems.append(f"port {name} is missing")
        elif not ports[name].active:
            problems.append(f"port {name} is {ports[name].describe_state()}")
        elif ports[name].gbps < gbps:
            problems.append(f"port {name} runs at {ports[name].gbps:g} Gb/s, not {gbps:g}")
    return problems


def judge_errors(output: str, expected: Expected) -> list[str]:
    """Return counters of errors that grew too much within the window.

    A counter at its maximum grows no more. That is no problem of the node: it may have counted for years.
    """
    problems = []
    for (name, counter), values in _collect(output).items():
        growth = sum(_list_growth(values))
        if name not in expected.rdma or growth < LIMITS[counter]:
            continue
        if counter == "link_downed":
            problems.append(f"the link of port {name} went down {growth} times within an hour")
        else:
            problems.append(f"{counter} of port {name} grew by {growth} within an hour, {LIMITS[counter]} are too many")
    return problems


def _collect(output: str) -> dict[tuple[str, str], list[int]]:
    """Return the values of each port's counters, in the order of the readings."""
    readings: dict[str, list[str]] = defaultdict(list)
    for line in output.splitlines():
        time, _, row = line.partition("\t")
        if row:
            readings[time].append(row)
    values: dict[tuple[str, str], list[int]] = defaultdict(list)
    for time in sorted(readings, key=int):
        for port in parse_rdma(split_lines("\n".join(readings[time]))).ports:
            for counter, value in port.counters.items():
                values[port.name, counter].append(value)
    return values


def _list_growth(values: list[int]) -> Iterator[int]:
    """Yield how much a counter grew between readings; a smaller value means that somebody has reset it."""
    for before, after in zip(values, values[1:]):  # noqa: B905, RUF007  # The node's own Python may be 3.9.
        yield after - before if after >= before else after


PORTS = Check(
    "rdma",
    about="all InfiniBand or RoCE ports of the fabric are active, at the rate that they had at the set-up",
    applies=lambda expected: bool(expected.rdma),
    command=lambda _: f"{render_reader()}read_rdma",
    judge=judge_ports,
    contexts=("gate", "prolog", "periodic"),
    limit_s=20.0,
    blame="node",
    # A reboot does not mend a cable or a switch.
    remedies=("rounds", "replace"),
)
ERRORS = Check(
    "rdma-errors",
    about="no link of the fabric went down twice within an hour, or had more errors than a good cable has",
    applies=lambda expected: bool(expected.rdma),
    command=lambda _: f"{render_reader(counters=True)}{_ERRORS_SCRIPT}",
    judge=judge_errors,
    contexts=("periodic",),
    limit_s=20.0,
    blame="node",
    # A link that has been good for an hour is used again.
    remedies=("rounds", "replace"),
)
