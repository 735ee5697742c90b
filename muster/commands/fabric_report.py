"""Select the nodes that `muster fabric` measures, and describe its measurements and what they are compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from cluster.catalog.bandwidth import GIB, HOST_GB_PER_S, minimum_busbw
from cluster.catalog.instances import all_types
from cluster.inventory import NodeSet
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands import screen
from slurm.control.nodes import ListedNode
from slurm.health.drain import FABRIC_PREFIX, REASON_MAX_CHARS

_MIN_NODES = 2


@dataclass(frozen=True)
class Proof:
    """What the job of one partition found."""

    partition: str
    fabric: str
    networks: Mapping[str, str]
    """What NCCL used, by node; empty where the ranks had no GPUs."""
    findings: Sequence[str]
    pairs: Sequence[Mapping[str, Any]]
    below: Mapping[str, str]
    unclear: str

    @property
    def reasons(self) -> dict[str, str]:
        """As Slurm is told."""
        return {node: f"{FABRIC_PREFIX}{why}"[:REASON_MAX_CHARS] for node, why in self.below.items()}


def chosen(
    rows: Sequence[ListedNode], partition: str | None, named: Collection[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Nodes by partition, and why others are left out. Only nodes that are named are started for it."""
    _check(rows, partition, named)
    of_interest = [one for one in rows if partition in (None, one.partition) and (not named or one.node in named)]
    wanted: dict[str, list[str]] = {}
    for one in of_interest:
        if one.is_up or (named and one.works):
            wanted.setdefault(one.partition, []).append(one.node)
    left_out = [
        f"{one.node} left out: {_why(one)}" for one in of_interest if one.node not in wanted.get(one.partition, [])
    ]
    alone = [part for part, nodes in wanted.items() if len(nodes) < _MIN_NODES]
    left_out += [f"{part} left out: {wanted[part][0]} has no other node to measure it with" for part in alone]
    return {part: nodes for part, nodes in wanted.items() if part not in alone}, left_out


def _check(rows: Sequence[ListedNode], partition: str | None, named: Collection[str]) -> None:
    partitions, nodes = {one.partition for one in rows}, {one.node for one in rows}
    if partition is not None and partition not in partitions:
        raise Stop(f"partition: there is no '{partition}'", f"choose one of: {_all(partitions)}", BAD_INPUT)
    if unknown := [node for node in named if node not in nodes]:
        raise Stop(f"nodes: there is no {_all(unknown)}", f"choose of: {_all(nodes)}", BAD_INPUT)
    if away := list(_away(rows, named)):
        raise Stop(f"nodes: {'; '.join(away)}", "name others, or give them back to Slurm first", BAD_INPUT)


def _away(rows: Sequence[ListedNode], named: Collection[str]) -> Iterator[str]:
    yield from dict.fromkeys(f"{one.node} is {_why(one)}" for one in rows if one.node in named and not one.works)


def _why(one: ListedNode) -> str:
    return one.state if not one.reason else f"{one.state} ({one.reason})"


def _all(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def table(proof: Proof) -> Table:
    drawn = screen.new_table(
        "nodes", "network", "GB/s", "expected", "share", "verdict", right=["GB/s", "expected", "share"]
    )
    for pair in proof.pairs:
        nodes, speed, expected = pair["nodes"], pair["gb_per_s"], pair["expected"]
        used = sorted({proof.networks.get(node) or proof.fabric for node in nodes})
        bad = [node for node in nodes if node in proof.below]
        drawn.add_row(
            " - ".join(nodes),
            ", ".join(used),
            f"{speed:.2f}",
            f"{expected:.2f}" if expected else "unknown",
            f"{speed / expected:.0%}" if expected else "",
            f"[red]{', '.join(bad)} is below[/red]" if bad else "[green]good[/green]",
        )
    return drawn


def basis(partition: str, sets: Sequence[NodeSet]) -> str:
    """Empty where the catalog has a published figure."""
    nodes = next((one for one in sets if one.group == partition), None)
    found = all_types().get(nodes.instance_type) if nodes else None
    if nodes is None or found is None or nodes.fabric != "efa":
        return f"{partition}: no figure is known for this network, pairs are judged by each other only"
    if any(row.size == GIB for row in found.busbw):
        return ""
    nobody = f"{partition}: nobody has published a figure for {found.name}"
    least = minimum_busbw(found)
    if least is None:
        return f"{nobody}, which has no GPU: pairs are judged by each other only"
    if least == HOST_GB_PER_S:
        return f"{nobody}: {least:g} GB/s is a tenth of the PCIe that its {found.gpus.count} GPUs share"
    cards = sum(card.efa for card in found.network_cards)
    return f"{nobody}: {least:g} GB/s is half of what its {cards} EFA card{' carries' if cards == 1 else 's carry'}"
