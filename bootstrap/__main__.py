"""`python -m bootstrap apply|verify|doctor`: set up the nodes of an inventory, verify them, or report what differs."""

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
from bootstrap.drift import find_drift
from bootstrap.errors import BootstrapError
from bootstrap.progress import Event, emit
from bootstrap.sessions import Connect, SharedConnections
from bootstrap.table import ProgressTable
from bootstrap.transport.base import TransportError
from bootstrap.transport.ssh import SshTransport, public_key
from bootstrap.verify import RETRY_FOR_S, verify
from cluster.inventory import Inventory, Node
from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import SpecError
from cluster.spec.load import load
from cluster.spec.stack_file import cluster_of
from slurm.config.auth_key import KEY_PATH, KEY_SET_PATH, generate_key

ROOT = Path(__file__).resolve().parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    options = _parser().parse_args(argv)
    key = options.key.read_text()
    connections = SharedConnections(lambda node: SshTransport.connect(node, key))
    console = Console()
    try:
        desired = _load_desired(options, key, connections.connect)
        return int(COMMANDS[options.command](desired, connections.connect, console))
    except (BootstrapError, TransportError, SpecError) as error:
        console.print(f"[bold red]failed[/] {error}", highlight=False, soft_wrap=True)
        return 1
    finally:
        connections.close()


def _apply(desired: Desired, connect: Connect, console: Console) -> int:
    table, began = ProgressTable(desired.inventory), time.monotonic()

    def report(event: Event) -> None:
        table(event)
        emit(event)

    try:
        with Live(table, console=console, refresh_per_second=8, transient=True):
            result = apply(desired, connect, report)
    finally:
        console.print(table)
    console.print(f"{result} in {time.monotonic() - began:.1f} s")
    return _verify(desired, connect, console)


def _verify(desired: Desired, connect: Connect, console: Console, retry_for_s: float = RETRY_FOR_S) -> int:
    failures = verify(desired, connect, retry_for_s)
    for failure in failures:
        console.print(f"[bold red]failed[/] {failure.error()}", highlight=False, soft_wrap=True)
    if not failures:
        nodes = format_count(len(desired.inventory.nodes), "node")
        console.print(f"verified on {nodes}: daemons, configuration, clock, names, accounting, SSH")
    return 1 if failures else 0


def _doctor(desired: Desired, connect: Connect, console: Console) -> int:
    deviations = find_drift(desired, connect)
    for deviation in deviations:
        line = f"{deviation.node} differs from the stack file ({deviation.step}): {deviation.what}"
        console.print(line, highlight=False, soft_wrap=True)
    if any(deviation.step == "connect" for deviation in deviations):
        return 1
    code = _verify(desired, connect, console, retry_for_s=0)
    if deviations:
        console.print("`python -m bootstrap apply` with the same options fixes what is listed")
    return 1 if deviations else code


COMMANDS = {"apply": _apply, "verify": _verify, "doctor": _doctor}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bootstrap", description="Apply the bootstrap steps to the nodes of a cluster."
    )
    about = "apply the steps; verify that the nodes work; or list what differs from the stack file (doctor)"
    parser.add_argument("command", choices=list(COMMANDS), help=about)
    parser.add_argument("--inventory", type=Path, required=True, help="inventory.json that `muster up` wrote")
    parser.add_argument("--spec", type=Path, required=True, help="stack file (Pulumi.<stack>.yaml)")
    parser.add_argument("--key", type=Path, required=True, help="private SSH key of the cluster")
    parser.add_argument(
        "--slurm-key", type=Path, help="Slurm's authentication key (default: the key on the controller, or a new one)"
    )
    return parser


def _load_desired(options: argparse.Namespace, key: str, connect: Connect) -> Desired:
    inventory = Inventory.model_validate_json(options.inventory.read_text())
    spec = load(cluster_of(options.spec), ClusterSpec)
    slurm_key = options.slurm_key.read_bytes() if options.slurm_key else None
    return Desired(inventory, spec, _read_secrets(inventory.controller, connect, public_key(key), slurm_key), ROOT)


def _read_secrets(controller: Node, connect: Connect, ssh_public_key: str, slurm_key: bytes | None) -> Secrets:
    """Read the secrets of a cluster from its controller; generate those that do not exist yet."""
    # While the key is rotated, both keys are in slurm.jwks.
    read_key = f"if [ -e {KEY_SET_PATH} ]; then base64 -w0 {KEY_SET_PATH}; else base64 -w0 {KEY_PATH}; fi"
    out = connect(controller).run(f"{read_key}; echo; cat /etc/slurm/slurmdbd.conf").out
    encoded_key, _, slurmdbd_conf = out.partition("\n")
    password = re.search(r"^StoragePass=(\S+)$", slurmdbd_conf, re.MULTILINE)
    return Secrets(
        slurm_key or base64.b64decode(encoded_key) or generate_key(),
        password[1] if password else secrets.token_urlsafe(24),
        ssh_public_key,
    )


if __name__ == "__main__":
    sys.exit(main())
