"""`muster cost`: what an hour of the cluster costs."""

from __future__ import annotations

from infra.commands import screen
from infra.commands.spec import valid_spec
from infra.commands.where import existing_stack


def cost(name: str) -> None:
    spec = valid_spec(existing_stack(name), None)
    screen.out().print(sentence(spec.target), markup=False)


def sentence(target: str) -> str:
    """Only targets that exist are asked: the validators have refused the others."""
    return "0.00 USD per hour: the local target runs on this machine" if target == "local" else "unknown"
