"""Check the shared filesystems of machines that exist already, from every node, before anything relies on them.

All nodes write, then all read what the others wrote: the same filesystem, fsync, atomic renames that others see, the
server's clock, and the speed of all nodes together (storage_verdict.py has the bounds). Machines that muster creates
need no check: their filesystem is the one that was created with them.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Iterable
from pathlib import Path

from bootstrap.desired import Desired
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event, Report
from bootstrap.sessions import Sessions, wait_for_all
from bootstrap.storage_verdict import (
    SEEN_S,
    SIZE_MB,
    Answer,
    StorageFault,
    judge_watched,
    judge_written,
    measure_total,
    parse_answer,
)
from bootstrap.transport.base import LostConnectionError, TransportError
from cluster.inventory import Node

STEP = "storage"
SCRIPT = (Path(__file__).parent / "scripts" / "storage-check.sh").read_text()
TIMEOUT_S = 60.0
TIMEOUT_PER_NODE_S = 4.0
"""For each node that writes at the same time: at the lowest speed that is allowed, 16 MB take 3.2 s."""


def check_storage(desired: Desired, sessions: Sessions, report: Report) -> None:
    """Raise BootstrapError if a shared filesystem is not what jobs and checkpoints need."""
    nodes = tuple(node for node in desired.inventory.nodes if node.adopted)
    for mount in desired.inventory.mounts if nodes else ():
        first = nodes[0].name
        report(Event("bootstrap", first, STEP, "start", f"write and read {mount} on all nodes"))
        total = _check_mount(mount, nodes, sessions)
        report(Event("bootstrap", first, STEP, "ok", f"{mount}: {total:.0f} MB/s from all nodes together"))


def render_check(name: str, mount: str, token: str, node: Node, nodes: tuple[Node, ...]) -> str:
    """Return the script of one round on one node; the first of the nodes renames a file."""
    values = {
        "ROUND": name,
        "MOUNT": mount,
        "FOLDER": _name_folder(mount, token),
        "TOKEN": token,
        "NODE": node.name,
        "WRITER": nodes[0].name,
        "OTHERS": " ".join(other.name for other in nodes if other != node),
        "SIZE_MB": str(SIZE_MB),
        "SEEN_S": str(SEEN_S),
    }
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items()) + SCRIPT


def _check_mount(mount: str, nodes: tuple[Node, ...], sessions: Sessions) -> float:
    token = secrets.token_hex(4)
    timeout = TIMEOUT_S + TIMEOUT_PER_NODE_S * len(nodes)

    def run(name: str) -> dict[str, Answer]:
        def on_node(node: Node) -> Answer:
            script = render_check(name, mount, token, node, nodes)
            try:
                return parse_answer(sessions.open(node).run(script, timeout=timeout).out)
            except LostConnectionError as error:
                fix = "check the node, then run again"
                raise BootstrapError(node.name, STEP, error.line, fix=fix) from None
            except TransportError as error:
                fix = f"check the server of {mount}, and the network between it and {node.name}"
                raise BootstrapError(node.name, STEP, f"{mount}: {error.line}", fix=fix) from None

        answers = sessions.run_together(on_node, nodes)
        return {node.name: answer for node, answer in zip(nodes, answers, strict=True)}

    try:
        written = run("write")
        _require_none(judge_written(mount, written))
        _require_none(judge_watched(mount, written, run("watch")))
    finally:
        _remove_folder(_name_folder(mount, token), nodes, sessions)
    return measure_total(written)


def _require_none(faults: Iterable[StorageFault]) -> None:
    listed = [*faults]
    if not listed:
        return
    first = listed[0]
    also = ", ".join(sorted({fault.node for fault in listed} - {first.node}))
    line = f"{first.line} (also on {also})" if also else first.line
    raise BootstrapError(first.node, STEP, line, fix=first.fix)


def _remove_folder(folder: str, nodes: Iterable[Node], sessions: Sessions) -> None:
    """Remove the folder on each node: they may have written to different filesystems."""

    def remove(node: Node) -> None:
        try:
            sessions.open(node).run(f"rm -rf {shlex.quote(folder)}", timeout=TIMEOUT_S)
        except (TransportError, BootstrapError):
            return  # A later check removes it.

    wait_for_all([sessions.submit(remove, node) for node in nodes])


def _name_folder(mount: str, token: str) -> str:
    return f"{mount}/.muster-check-{token}"
