"""Condense output with a line for each node, so that it fits into a transport that returns few characters.

    scontrol show node --oneliner | condense.py nodes CPUS MEMORY_MB
    condense.py ranks COMMAND...

The controller runs this text: it imports nothing of this repository. Nodes whose lines differ only in the name share a
line, with a list such as `gpu-[1-500,502]`, which `slurm.hostlist.expand` expands in the same order.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

MAX_CHARS = 16000
"""Length of the lines about nodes; Systems Manager returns 24,000 characters of a command's output."""
MAX_OTHER_LINES, MAX_LINE_CHARS = 30, 200
"""Limits of the lines that are not about a node, such as errors of srun: half of them are the first, half the last."""
PREFIX = "muster-gate "


def condense_nodes(text: str, cpus: int, memory_mb: int) -> str:
    """Return the lines of `scontrol show node --oneliner` with the fields that decide whether a node can take a job.

    Free CPUs are shown up to `cpus`, and free memory as `memory_mb` or nothing: otherwise every node had its own line.
    """
    lines = text.splitlines()
    nodes = [line for line in lines if line.startswith("NodeName=")]
    others = [line for line in lines if line.strip() and not line.startswith("NodeName=")]
    condensed = ""
    # The beginning of a reason tells who set it; the remainder is for people, and is cut off if there are too many.
    for reason_chars in (200, 60, 26):
        groups: dict[str, list[str]] = {}
        for line in nodes:
            name, fields = _condense_node(line, cpus, memory_mb, reason_chars)
            groups.setdefault(fields, []).append(name)
        condensed = "".join(f"NodeName={join_names(names)} {fields}\n" for fields, names in groups.items())
        if len(condensed) <= MAX_CHARS:
            break
    return condensed + cut_lines(others)


def _condense_node(line: str, cpus: int, memory_mb: int, reason_chars: int) -> "tuple[str, str]":
    head, _, reason = line.partition(" Reason=")
    fields = dict(re.findall(r"(\w+)=(\S*)", head))
    free = _subtract(fields, "CPUTot", "CPUAlloc"), _subtract(fields, "RealMemory", "AllocMem")
    shown = f"CPUTot={min(cpus, max(0, free[0]))} RealMemory={memory_mb if free[1] >= memory_mb else 0}"
    shown += f" State={fields.get('State', '')}"
    if reason:
        match = re.match(r"(.*?)(?: \[(\S+)@\S+\])?(?: Comment=.*)?$", reason)
        why, by = (match[1], match[2]) if match else (reason, None)
        # The time at which it was set differs from node to node.
        shown += f" Reason={why[:reason_chars].strip()}" + (f" [{by}@-]" if by else "")
    return fields.get("NodeName", ""), shown


def _subtract(fields: "dict[str, str]", total: str, used: str) -> int:
    return int(fields.get(total) or 0) - int(fields.get(used) or 0)


def condense_ranks(text: str) -> str:
    """Return the reports of the ready gate's ranks: per host the last stage and the error that ended it."""
    stages: dict[str, dict[str, Any]] = {}
    errors: dict[str, dict[str, Any]] = {}
    others: list[str] = []
    for line in text.splitlines():
        start = line.find(PREFIX)
        if start < 0:
            others += [line] if line.strip() else []
            continue
        try:
            entry = json.loads(line[start + len(PREFIX) :])
            (errors if entry["stage"] == "failed" else stages)[entry["host"]] = {**entry, "rank": int(entry["rank"])}
        except (ValueError, LookupError, TypeError):
            # A rank was killed while it wrote the line.
            continue
    condensed = ""
    for error_chars in (300, 80, 0):
        groups: dict[str, list[tuple[int, str]]] = {}
        for entry in (*stages.values(), *errors.values()):
            error = {"error": str(entry["error"])[:error_chars]} if entry.get("error") else {}
            content = {key: entry[key] for key in ("stage", "sum", "missing", "unanswered") if key in entry}
            groups.setdefault(json.dumps({**content, **error}), []).append((entry["rank"], entry["host"]))
        condensed = "".join(_write_group(content, sorted(members)) for content, members in groups.items())
        if len(condensed) <= MAX_CHARS:
            break
    return condensed + cut_lines(others)


def _write_group(content: str, members: "list[tuple[int, str]]") -> str:
    ranks = join_numbers(rank for rank, _ in members)
    listed = {"host": join_names([host for _, host in members]), "rank": ranks, **json.loads(content)}
    return f"{PREFIX}{json.dumps(listed)}\n"


def join_names(names: "Iterable[str]") -> str:
    """Return names in their order, with a range for each run of consecutive numbers: `gpu-[1-500,502],cpu-1`."""
    parts: list[tuple[str, list[list[int]]]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(0|[1-9]\d*)", name)
        prefix, number = (match[1], int(match[2])) if match else (name, -1)
        if number < 0:
            parts.append((prefix, []))
        elif not (parts and parts[-1][0] == prefix and parts[-1][1]):
            parts.append((prefix, [[number, number]]))
        elif parts[-1][1][-1][1] == number - 1:
            parts[-1][1][-1][1] = number
        else:
            parts[-1][1].append([number, number])
    return ",".join(prefix + _write_runs(runs) for prefix, runs in parts)


def _write_runs(runs: "list[list[int]]") -> str:
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"[{text}]" if "," in text or "-" in text else text


def join_numbers(numbers: "Iterable[int]") -> str:
    """Return numbers in their order, as ranges: 0, 1, 2 and 7 are `0-2,7`."""
    return join_names(map(str, numbers)).strip("[]")


def cut_lines(lines: "list[str]") -> str:
    """Return the first and the last lines, each cut off; srun prints a line for every rank that ends."""
    half = MAX_OTHER_LINES // 2
    if len(lines) > MAX_OTHER_LINES:
        lines = [*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]]
    return "".join(f"{line[:MAX_LINE_CHARS]}\n" for line in lines)


def main(what: str, *arguments: str) -> int:
    """Condense the nodes on stdin, or what a command prints; return its exit status, and 1 if there is no node."""
    if what == "ranks":
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        sys.stdout.write(condense_ranks(done.stdout.decode("utf-8", "replace")))
        return done.returncode
    text = condense_nodes(sys.stdin.read(), int(arguments[0]), int(arguments[1]))
    sys.stdout.write(text)
    return 0 if text.startswith("NodeName=") else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
