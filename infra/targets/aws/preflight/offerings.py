"""Zones: whether they exist, and whether each sells the machines that are to be there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cluster.spec import ClusterSpec
from cluster.spec.issue import Issue, error, warning
from infra.targets.aws.offerings import offered_zones
from infra.targets.aws.plan.network import AUTO, zones
from infra.targets.aws.preflight.subject import Subject
from infra.targets.aws.spec import aws_section
from infra.targets.aws.validate.types import named

Offered = Mapping[str, Sequence[str]]


def offered(subject: Subject) -> Iterator[Issue]:
    section = aws_section(subject.spec)
    if subject.spec.network.vpc_id and not (section and section.zones):
        # The zones are those of the subnets, which are looked at elsewhere.
        return
    yield from judge(subject.spec, offered_zones(subject.client("ec2"), sorted(set(named(subject.spec).values()))))


def judge(spec: ClusterSpec, found: Offered) -> Iterator[Issue]:
    section = aws_section(spec)
    nowhere = [name for name, there in found.items() if not there]
    for where, name in named(spec).items():
        if name in nowhere:
            message = f"{name} is sold in no zone of {section.region if section else ''}"
            yield error("not_offered", f"{where}.instance_type", message, "choose another type, or another region")
    if nowhere:
        return
    if zones(spec) == (AUTO,):
        yield from _one_for_all(found)
        return
    for where, name in named(spec).items():
        yield from _in_zones(where, name, _wanted(spec, where), found[name])


def _one_for_all(found: Offered) -> Iterator[Issue]:
    if not set.intersection(*(set(there) for there in found.values())):
        told = "; ".join(f"{name}: {', '.join(there)}" for name, there in found.items())
        message = f"no zone offers every instance type ({told})"
        yield error(
            "no_common_zone", "aws.zones", message, "name the zones, and those of each group; or choose other types"
        )


def _wanted(spec: ClusterSpec, where: str) -> tuple[str, ...]:
    """Controller and login are in the first zone."""
    _, _, group = where.partition(".")
    return (spec.groups[group].capacity.zones or zones(spec)) if group else zones(spec)[:1]


def _in_zones(where: str, name: str, wanted: Sequence[str], there: Sequence[str]) -> Iterator[Issue]:
    missing = [zone for zone in wanted if zone not in there]
    if not missing:
        return
    message = f"{name} is not sold in {', '.join(missing)}; it is in {', '.join(there)}"
    if len(missing) == len(wanted):
        yield error("not_offered", where, message, f"write `zones: [{there[0]}]`, or choose another type")
    else:
        yield warning("not_offered", where, message, "remove that zone: every try there is lost time")
