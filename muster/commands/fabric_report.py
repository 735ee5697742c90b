"""Select the nodes that `muster fabric` measures, and describe its measurements and what they are compared with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from cluster.catalog.bandwidth import GIB, HOST_GB_PER_S, minimum_busbw
from cluster.catalog.instances import all_types
from cluster.inventory import NodeSet
from cluster.names import group_of
from cluster.plural import format_count
from infra.engine.stop import BAD_INPUT, Stop
from muster.commands import screen
from slurm.control.nodes import ListedNode
from slurm.health.drain import FABRIC_PREFIX, REASON_MAX_CHARS

_MIN_NODES = 2


@dataclass(frozen=True)
class FabricResult:
    """The measurements of one partition by the fabric job."""

    partition: str
    fabric: str
    networks: Mapping[str, str]
    """The network that NCCL used, by node; empty if the ranks had no GPUs."""
    findings: Sequence[str]
    pairs: Sequence[Mapping[str, Any]]
    below: Mapping[str, str]
    unclear: str
    links: Sequence[Mapping[str, Any]] = ()
    """Measurements of single InfiniBand or RoCE ports; empty on other fabrics."""

    @property
    def is_expectation_known(self) -> bool:
        """Whether there is a figure for the speed of each pair, or pairs could only be compared with each other."""
        return all(pair["expected"] is not None for pair in self.pairs)

    @property
    def reasons(self) -> dict[str, str]:
        """The drain reason of each slow node, as Slurm stores it."""
        return {node: f"{FABRIC_PREFIX}{why}"[:REASON_MAX_CHARS] for node, why in self.below.items()}


def select_nodes(
    rows: Sequence[ListedNode], partition: str | None, named: Collection[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the nodes to measure by partition, and why the others are skipped.

    Nodes that are powered off are started only if they are named.
    """
    _check(rows, partition, named)
    # Without a name, each node is measured once, in the partition of its group.
    in_partition = [row for row in rows if row.partition == (partition or group_of(row.node))]
    candidates = [row for row in in_partition if not named or row.node in named]
    selected: dict[str, list[str]] = {}
    for row in candidates:
        if row.is_up or (named and row.works):
            selected.setdefault(row.partition, []).append(row.node)
    skipped = [
        f"{row.node} skipped: {_describe(row)}" for row in candidates if row.node not in selected.get(row.partition, [])
    ]
    alone = [part for part, nodes in selected.items() if len(nodes) < _MIN_NODES]
    skipped += [f"{part} skipped: {selected[part][0]} has no other node to measure with" for part in alone]
    return {part: nodes for part, nodes in selected.items() if part not in alone}, skipped


def _check(rows: Sequence[ListedNode], partition: str | None, named: Collection[str]) -> None:
    partitions, nodes = {row.partition for row in rows}, {row.node for row in rows}
    if partition is not None and partition not in partitions:
        raise Stop(f"partition: there is no '{partition}'", f"choose one of: {_all(partitions)}", BAD_INPUT)
    if unknown := [node for node in named if node not in nodes]:
        raise Stop(f"nodes: there is no {_all(unknown)}", f"choose from: {_all(nodes)}", BAD_INPUT)
    if unavailable := list(_unavailable(rows, named)):
        raise Stop(f"nodes: {'; '.join(unavailable)}", "name other nodes, or return them to Slurm first", BAD_INPUT)


def _unavailable(rows: Sequence[ListedNode], named: Collection[str]) -> Iterator[str]:
    yield from dict.fromkeys(f"{row.node} is {_describe(row)}" for row in rows if row.node in named and not row.works)


def _describe(row: ListedNode) -> str:
    return row.state if not row.reason else f"{row.state} ({row.reason})"


def _all(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def build_pairs_table(result: FabricResult) -> Table:
    """Return the table of the measured pairs."""
    drawn = screen.new_table(
        "nodes", "network", "GB/s", "expected", "share", "verdict", right=["GB/s", "expected", "share"]
    )
    for pair in result.pairs:
        nodes, speed, expected = pair["nodes"], pair["gb_per_s"], pair["expected"]
        used = sorted({result.networks.get(node) or result.fabric for node in nodes})
        bad = [node for node in nodes if node in result.below]
        drawn.add_row(
            " - ".join(nodes),
            ", ".join(used),
            f"{speed:.2f}",
            f"{expected:.2f}" if expected else "unknown",
            f"{speed / expected:.0%}" if expected else "",
            f"[red]{', '.join(bad)} is too slow[/red]" if bad else "[green]good[/green]",
        )
    return drawn


def describe_links(result: FabricResult) -> str:
    """Return how many single links were measured, and the slowest one; empty on other fabrics."""
    if not result.links:
        return ""
    slowest = min(result.links, key=_share_of_rate)
    speed = "no connection" if slowest["gbps"] is None else f"{slowest['gbps']:.1f} of {slowest['rate']:g} Gb/s"
    where = f"{' - '.join(slowest['nodes'])} at {slowest['port']}"
    return f"{result.partition}: {format_count(len(result.links), 'link')} measured, slowest {where}: {speed}"


def _share_of_rate(link: Mapping[str, Any]) -> float:
    """Return the share of its rate that a link reaches; a rate of 0 could not be read, and says nothing."""
    if link["gbps"] is None:
        return 0.0
    return float(link["gbps"] / link["rate"]) if link["rate"] else 1.0


def explain_expectation(partition: str, sets: Sequence[NodeSet]) -> str:
    """Return what a partition's bandwidth is compared with; empty if the catalog has a published figure."""
    nodes = next((node_set for node_set in sets if node_set.group == partition), None)
    instance = all_types().get(nodes.instance_type) if nodes else None
    if nodes is None or instance is None or nodes.fabric != "efa":
        return f"{partition}: no expected bandwidth is known for this network; pairs are compared only with each other"
    if any(row.size == GIB for row in instance.busbw):
        return ""
    unpublished = f"{partition}: no published bandwidth for {instance.name}"
    least = minimum_busbw(instance)
    if least is None:
        return f"{unpublished}, which has no GPU; pairs are compared only with each other"
    expected = f"{unpublished}; expected: {least:g} GB/s"
    if least == HOST_GB_PER_S:
        return f"{expected}, a tenth of the PCIe bandwidth of its {format_count(instance.gpus.count, 'GPU')}"
    cards = sum(card.efa for card in instance.network_cards)
    return f"{expected}, half of the bandwidth of its {format_count(cards, 'EFA card')}"
