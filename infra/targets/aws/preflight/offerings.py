"""Checks of zones: each must sell the instance types that the spec puts there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.offerings import list_offered_zones
from infra.targets.aws.plan.network import AUTO, zones
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import list_type_names, machine_of

Offerings = Mapping[str, Sequence[str]]


def check_zones(subject: Subject) -> Iterator[Issue]:
    """Report instance types that their zones do not sell."""
    section = aws_section(subject.spec)
    if subject.spec.network.vpc_id and not (section and section.zones):
        # The zones are those of the subnets, which existing_network checks.
        return
    current_zones = sorted({instance.zone for instance in subject.running} - {""})
    yield from judge(subject.spec, list_spec_offerings(subject), current_zones)


def list_spec_offerings(subject: Subject) -> Offerings:
    """Return the zones that sell each instance type of the spec."""
    return list_offered_zones(subject.client("ec2"), sorted(set(list_type_names(subject.spec).values())))


def judge(spec: ClusterSpec, offerings: Offerings, current_zones: Sequence[str] = ()) -> Iterator[Issue]:
    """Yield issues of a spec, by the zones in which each instance type is sold.

    `current_zones` has the zones in which the cluster already runs: without `aws.zones`, it stays there.
    """
    section = aws_section(spec)
    unsold = [name for name, sold_in in offerings.items() if not sold_in]
    for where, name in list_type_names(spec).items():
        if name in unsold:
            message = f"{name} is not sold in any zone of {section.region if section else ''}"
            yield error("not_offered", where, message, "choose another type, or another region")
    if unsold:
        return
    if zones(spec) == (AUTO,):
        yield from _check_current_zones(spec, offerings, current_zones)
        if not current_zones:
            yield from _check_common_zone(offerings)
        return
    for where, name in list_type_names(spec).items():
        yield from _check_type(machine_of(where), name, _list_zones(spec, machine_of(where)), offerings[name])


def judge_subnets(spec: ClusterSpec, subnet_zones: Sequence[str], offerings: Offerings) -> Iterator[Issue]:
    """Yield issues of a spec that names subnets but no zones; `subnet_zones` has the zone of each subnet, in order.

    Controller and login are in the first subnet. A group may name some of the zones.
    """
    for where, name in list_type_names(spec).items():
        _, _, group = machine_of(where).partition(".")
        named = spec.groups[group].capacity.zones if group else subnet_zones[:1]
        planned = [zone for zone in subnet_zones if not named or zone in named]
        missing = [zone for zone in planned if zone not in offerings[name]]
        if not missing:
            continue
        message = f"{name} is not sold in {', '.join(missing)}, where the subnets are"
        if len(missing) == len(planned):
            yield error("not_offered", where, message, "use a subnet in another zone, or another type")
        else:
            yield warning("not_offered", where, message, "remove that subnet: launches there always fail")


def _check_current_zones(spec: ClusterSpec, offerings: Offerings, current_zones: Sequence[str]) -> Iterator[Issue]:
    for where, name in list_type_names(spec).items():
        if missing := [zone for zone in current_zones if zone not in offerings[name]]:
            message = f"{name} is not sold in {', '.join(missing)}, the zone of this cluster"
            yield error("not_offered", where, message, "choose a type that this zone offers, or create a new cluster")


def _check_common_zone(offerings: Offerings) -> Iterator[Issue]:
    if not set.intersection(*(set(sold_in) for sold_in in offerings.values())):
        zones_text = "; ".join(f"{name}: {', '.join(sold_in)}" for name, sold_in in offerings.items())
        message = f"no zone offers every instance type ({zones_text})"
        yield error(
            "no_common_zone", "aws.zones", message, "name zones for aws and for each group, or choose other types"
        )


def _list_zones(spec: ClusterSpec, machine: str) -> tuple[str, ...]:
    """Return the zones of a machine; controller and login are in the first."""
    _, _, group = machine.partition(".")
    return (spec.groups[group].capacity.zones or zones(spec)) if group else zones(spec)[:1]


def _check_type(where: str, name: str, planned: Sequence[str], sold_in: Sequence[str]) -> Iterator[Issue]:
    missing = [zone for zone in planned if zone not in sold_in]
    if not missing:
        return
    message = f"{name} is not sold in {', '.join(missing)}; it is sold in {', '.join(sold_in)}"
    if len(missing) == len(planned):
        yield error("not_offered", where, message, f"write `zones: [{sold_in[0]}]`, or choose another type")
    else:
        yield warning("not_offered", where, message, "remove that zone: launches there always fail")
