"""`python -m bootstrap apply|verify|doctor`: make a cluster of an inventory, check one, or say what is wrong."""

from __future__ import annotations

import argparse
import base64
import re
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from bootstrap.apply import apply
from bootstrap.desired import Desired, Secrets
from bootstrap.drift import drift
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event, emit
from bootstrap.sessions import Connect, Kept
from bootstrap.table import Board
from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport, public_key
from bootstrap.verify import PATIENCE_S, verify
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from cluster.spec.load import load
from cluster.spec.stack_file import cluster_of

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    key = options.key.read_text()
    kept = Kept(lambda node: SshTransport.connect(node, key))
    console = Console()
    try:
        desired = _desired(options, key, kept.connect)
        return int(COMMANDS[options.command](desired, kept.connect, console))
    except (BootstrapError, TransportError, SpecError) as problem:
        console.print(f"[bold red]failed[/] {problem}", highlight=False, soft_wrap=True)
        return 1
    finally:
        kept.close()


def _apply(desired: Desired, connect: Connect, console: Console) -> int:
    board, began = Board(desired.inventory), time.monotonic()

    def report(event: Event) -> None:
        board(event)
        emit(event)

    try:
        with Live(board, console=console, refresh_per_second=8, transient=True):
            outcome = apply(desired, connect, report)
    finally:
        console.print(board)
    console.print(f"{outcome} in {time.monotonic() - began:.1f} s")
    return _verify(desired, connect, console)


def _verify(desired: Desired, connect: Connect, console: Console, patience_s: float = PATIENCE_S) -> int:
    failed = verify(desired, connect, patience_s)
    for one in failed:
        console.print(f"[bold red]failed[/] {one.error()}", highlight=False, soft_wrap=True)
    if not failed:
        console.print(
            f"verified on {len(desired.inventory.nodes)} nodes: daemons, configuration, clock, names, accounting, SSH"
        )
    return 1 if failed else 0


def _doctor(desired: Desired, connect: Connect, console: Console) -> int:
    found = drift(desired, connect)
    for one in found:
        console.print(f"{one.node} is not as it should be ({one.step}): {one.what}", highlight=False, soft_wrap=True)
    if any(one.step == "connect" for one in found):
        return 1
    code = _verify(desired, connect, console, patience_s=0)
    if found:
        console.print("`python -m bootstrap apply` with the same options puts right what is listed")
    return 1 if found else code


COMMANDS = {"apply": _apply, "verify": _verify, "doctor": _doctor}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bootstrap", description=__doc__)
    parser.add_argument("command", choices=list(COMMANDS))
    parser.add_argument("--inventory", type=Path, required=True, help="inventory.json")
    parser.add_argument("--spec", type=Path, required=True, help="stack file (Pulumi.<stack>.yaml)")
    parser.add_argument("--key", type=Path, required=True, help="private SSH key of the cluster")
    parser.add_argument(
        "--slurm-key", type=Path, help="Slurm's authentication key; by default the one the controller has"
    )
    return parser


def _desired(options: argparse.Namespace, key: str, connect: Connect) -> Desired:
    inventory = Inventory.model_validate_json(options.inventory.read_text())
    spec = load(cluster_of(options.spec), ClusterSpec)
    slurm_key = options.slurm_key.read_bytes() if options.slurm_key else None
    return Desired(inventory, spec, _secrets(inventory.controller, connect, public_key(key), slurm_key), ROOT)


def _secrets(controller: Node, connect: Connect, ssh_public_key: str, slurm_key: bytes | None) -> Secrets:
    """A cluster keeps the secrets it has; a new one gets new ones."""
    found = connect(controller).run("base64 -w0 /etc/slurm/slurm.key; echo; cat /etc/slurm/slurmdbd.conf").out
    first, _, rest = found.partition("\n")
    password = re.search(r"^StoragePass=(\S+)$", rest, re.MULTILINE)
    return Secrets(
        slurm_key or base64.b64decode(first) or secrets.token_bytes(1024),
        password[1] if password else secrets.token_urlsafe(24),
        ssh_public_key,
    )


if __name__ == "__main__":
    sys.exit(main())
