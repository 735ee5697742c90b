"""The search for resources of a cluster on AWS by tag and name, independent of the state file, and their removal.

Each service lists its own resources. The tagging service still lists resources that were deleted an hour ago, so it
only adds the types that no kind in the registry covers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from cluster.catalog.prices import service_price
from infra.resources.error import InUseError, ResourceError
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.leftovers.ec2 import INSTANCE
from infra.targets.aws.leftovers.holders import describe_holders
from infra.targets.aws.leftovers.kind import AccountRegion, ClusterResource, ResourceKind, read_tags
from infra.targets.aws.leftovers.registry import FILESYSTEM_DEPENDENCIES, FILESYSTEMS, KINDS, USERS
from infra.targets.target import Leftover, Leftovers
from slurm.power.launcher import Fault

T = TypeVar("T")

_KIND_BY_NAME = {kind.name: kind for kind in KINDS}
# These are parts of resources that the registry covers.
_SUBRESOURCE_TYPES = ("ec2:security-group-rule", "elasticfilesystem:access-point")
_OTHER_KIND = "tagged resource"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 10.0
_IN_USE_CODES = ("DependencyViolation", "DeleteConflict", "IncorrectState", "BucketNotEmpty", "InvalidIPAddress.InUse")
# For a network interface, only EC2's message says that it is in use (github.com/gruntwork-io/cloud-nuke/pull/1132).
_IN_USE_MESSAGE = "is currently in use"
_GONE_CODES = ("NotFound", "NoSuch", "Unknown", "ParameterNotFound", "InvalidAllocationID")


def find_leftovers(cluster: str, region: str) -> Leftovers:
    """Return the resources of a cluster; if a service refuses to list its resources, only those are missing."""
    search = _Search(AccountRegion(region), cluster)
    resources = [(kind, resource) for kind in KINDS for resource in search.run(kind.service, kind.name, kind.find)]
    others = search.run("tagging", "other kinds of resources", _find_other_kinds)
    if len(search.refused) > len(KINDS):
        raise search.to_error(search.unseen[0])
    required_ids = {id_ for _, resource in resources if resource.keep for id_ in resource.requires if id_}
    unseen_kinds = frozenset(what for _, what, _ in search.refused)
    unsure = bool(unseen_kinds & {kind.name for kind in FILESYSTEMS})
    leftovers = [_to_leftover(kind, resource, region, required_ids, unsure=unsure) for kind, resource in resources]
    return Leftovers([*leftovers, *others], search.unseen, unseen_kinds)


def remove_leftover(
    leftover: Leftover, until: float, account: AccountRegion, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Remove a resource; retry until the time `until` (time.monotonic) if it is in use or AWS throttles.

    `account` is the region of the leftover: to create a client takes longer than most removals.
    """
    if leftover.kind == _OTHER_KIND:
        raise ResourceError(
            "",
            f"{leftover.name} is a kind of resource that muster never creates; its cost is unknown",
            "find out who tagged it and remove it yourself",
        )
    kind, wait_s = _KIND_BY_NAME[leftover.kind], _FIRST_WAIT_S
    while True:
        try:
            return kind.remove(account, leftover.name)
        except (ClientError, BotoCoreError) as error:
            fault = classify_error(error)
            if any(code in fault.code for code in _GONE_CODES):
                return None
            is_temporary = _is_temporary(fault)
            if not is_temporary or time.monotonic() + wait_s > until:
                # Messages of AWS do not always tell the cause: the code is what a person can look up.
                code = fault.code if isinstance(error, ClientError) else ""
                reason = ": ".join(filter(None, (code, fault.message)))
                message = f"AWS refused to remove {leftover.kind} {leftover.name}: {reason}"
                if is_temporary and (holders := describe_holders(account, leftover.kind, leftover.name)):
                    message = f"{message.rstrip('.')}; it is used by {holders}"
                error_class = InUseError if is_temporary else ResourceError
                raise error_class("", message, "fix the cause it names, then run teardown again") from None
        sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def list_price_notes(remaining: Iterable[Leftover]) -> list[str]:
    """Return a warning if costs use another region's prices: only instance prices are known for every region."""
    table = service_price("nat-gateway").region
    others = {leftover.region for leftover in remaining if leftover.usd_per_hour and not leftover.is_node} - {table}
    return [f"prices are those of {table}; {region} may cost up to a third more" for region in sorted(others)]


def _to_leftover(
    kind: ResourceKind, resource: ClusterResource, region: str, required_ids: set[str], *, unsure: bool
) -> Leftover:
    keep_reason = ""
    if resource.keep:
        keep_reason = "keep: true"
    elif {resource.id, resource.parent} & required_ids:
        keep_reason = "needed by it"
    elif unsure and kind in FILESYSTEM_DEPENDENCIES:
        keep_reason = "unseen storage may need it"
    return Leftover(
        kind.name,
        resource.id,
        resource.created,
        resource.tags.get(names.STACK, ""),
        usd_per_hour=resource.usd_per_hour,
        keep_reason=keep_reason,
        region=region,
        is_node=kind is INSTANCE,
        used_by=frozenset(user.name for user in USERS.get(kind, ())),
    )


def _find_other_kinds(account: AccountRegion, cluster: str) -> Iterator[Leftover]:
    covered_types = {arn_type for kind in KINDS for arn_type in kind.arn_types} | set(_SUBRESOURCE_TYPES)
    filters = [{"Key": names.CLUSTER, "Values": [cluster]}]
    for mapping in account.list_items(
        "resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=filters
    ):
        if _read_arn_type(mapping["ResourceARN"]) not in covered_types:
            stack = read_tags(mapping["Tags"]).get(names.STACK, "")
            yield Leftover(_OTHER_KIND, mapping["ResourceARN"], stack=stack, region=account.region)


def _read_arn_type(arn: str) -> str:
    """Return `ec2:instance` for arn:aws:ec2:us-east-1:1:instance/i-1; the ARN of a bucket has no type in it."""
    service, resource = arn.split(":", 5)[2::3]
    return "s3:bucket" if service == "s3" else f"{service}:{resource.replace(':', '/').partition('/')[0]}"


@dataclass
class _Search:
    account: AccountRegion
    cluster: str
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """Service, kind of resource, and error code of each listing that AWS refused."""

    def run(self, service: str, what: str, find: Callable[[AccountRegion, str], Iterable[T]]) -> list[T]:
        """Return what `find` yields until AWS denies a call."""
        results: list[T] = []
        try:
            for result in find(self.account, self.cluster):
                results.append(result)  # noqa: PERF402  # list() would lose the results before a refusal
        except ClientError as error:
            self.refused.append((service, what, error.response["Error"]["Code"]))
        except BotoCoreError as error:
            raise self.to_error(f"{what}: {error}") from None
        return results

    @property
    def unseen(self) -> tuple[str, ...]:
        """Return a clause for each service and reason."""
        kinds_by_reason: dict[tuple[str, str], list[str]] = {}
        for service, what, code in self.refused:
            kinds_by_reason.setdefault((service, code), []).append(what)
        return tuple(
            f"{service} ({', '.join(kinds)}) because {code}" for (service, code), kinds in kinds_by_reason.items()
        )

    def to_error(self, reason: str) -> ResourceError:
        message = (
            f"the remaining resources of cluster {self.cluster} in {self.account.region} cannot be listed ({reason})"
        )
        fix = "use credentials that may list them; `aws sts get-caller-identity` shows whose are in use"
        return ResourceError("aws", message, fix)


def _is_temporary(fault: Fault) -> bool:
    in_use = fault.code in _IN_USE_CODES or "InUse" in fault.code or _IN_USE_MESSAGE in fault.message
    return in_use or fault.kind == "throttle"
