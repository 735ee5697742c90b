"""Which nodes a fabric run is about: those that are up, by partition, unless somebody names others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from infra.engine.stop import BAD_INPUT, Stop
from slurm.control.nodes import ListedNode

_FEWEST = 2


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
    alone = [part for part, nodes in wanted.items() if len(nodes) < _FEWEST]
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
