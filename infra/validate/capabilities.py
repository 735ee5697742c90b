"""What each target can do, as data: validators compare specs with it and name the targets that have what is missing."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.spec import Fabric, Target


@dataclass(frozen=True)
class Capabilities:
    available: bool
    """Whether this version can build it."""
    machine: frozenset[str]
    """The field that says what one machine is made of; none where the machines exist already."""
    fabrics: frozenset[Fabric]
    gpus: frozenset[str]
    storage: frozenset[str]
    power_saving: bool
    """Nodes can be made and removed by the scheduler, so groups may have min and max."""


TARGETS: dict[Target, Capabilities] = {
    "local": Capabilities(
        available=True,
        machine=frozenset({"size"}),
        fabrics=frozenset({"tcp"}),
        gpus=frozenset({"simulated"}),
        storage=frozenset({"volume"}),
        power_saving=False,
    ),
    "aws": Capabilities(
        available=True,
        machine=frozenset({"instance_type"}),
        fabrics=frozenset({"tcp", "efa"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"fsx-lustre", "efs", "existing"}),
        power_saving=True,
    ),
    "hosts": Capabilities(
        available=False,
        machine=frozenset(),
        fabrics=frozenset({"tcp", "infiniband"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"existing"}),
        power_saving=False,
    ),
}


def having(ability: str) -> str:
    """The targets that have an ability, as a message names them."""
    return ", ".join(name for name, target in TARGETS.items() if getattr(target, ability))


def offering(ability: str, value: str) -> str:
    """The targets with `value` among what they offer of one ability, as a message names them."""
    return ", ".join(name for name, target in TARGETS.items() if value in getattr(target, ability)) or "none"
