"""`muster cost`: what an hour of the cluster costs."""

from __future__ import annotations

from infra.commands import screen
from infra.commands.spec import valid_spec
from infra.commands.where import existing_stack
from infra.spec import ClusterSpec
from infra.targets import target


def cost(name: str) -> None:
    spec = valid_spec(existing_stack(name), None)
    screen.out().print(sentence(spec), markup=False)


def sentence(spec: ClusterSpec) -> str:
    """Only targets that exist are asked: the validators have refused the others."""
    return f"{target(spec.target).usd_per_hour(spec):.2f} USD per hour on target {spec.target}"
