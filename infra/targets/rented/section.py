"""The section of a target that rents machines: where it is in a spec, and the machine of each role and group.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from cluster.spec import ClusterSpec
from cluster.spec.base import SpecModel

Section = TypeVar("Section", bound=SpecModel)
Machine_co = TypeVar("Machine_co", covariant=True)


class MachineSection(Protocol[Machine_co]):
    """What all such sections have."""

    @property
    def ssh_from(self) -> Sequence[str]: ...
    @property
    def controller(self) -> Machine_co: ...
    @property
    def login(self) -> Machine_co: ...
    @property
    def groups(self) -> Mapping[str, Machine_co]: ...


def require_section(spec: ClusterSpec, name: str, model: type[Section]) -> Section:
    """Return the section of a valid spec."""
    section = spec.section(name, model)
    if section is None:
        raise ValueError(f"{name}: the section is missing, although the spec was validated")
    return section


def machine_of(section: MachineSection[Machine_co], role: str, group: str | None) -> Machine_co:
    """Return the hardware of a node by its role and group."""
    if group is not None:
        return section.groups[group]
    return section.login if role == "login" else section.controller
