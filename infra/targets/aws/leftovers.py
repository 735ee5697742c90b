"""What exists of a cluster on AWS beside the state file, by tag and name, and what each thing costs as long as it does.

Everything is asked of the service that has it. The tagging service, which also knows what was deleted an hour ago, is
asked in the end for what no service here was asked about."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from cluster import names
from infra.resources.problem import Problem
from infra.targets.aws.launcher.errors import classify_error
from infra.targets.aws.leftover_kinds import ec2, names_and_rights, storage
from infra.targets.aws.leftover_kinds.kind import Account, Found, Kind, tags_of
from infra.targets.target import Leftover, Leftovers
from slurm.power.launcher import Fault

T = TypeVar("T")

# In the order in which they can be removed.
KINDS: tuple[Kind, ...] = (
    *ec2.MACHINES,
    storage.LUSTRE,
    storage.EFS,
    names_and_rights.ZONE,
    *ec2.NETWORK,
    names_and_rights.PARAMETER,
    storage.BUCKET,
    names_and_rights.LOG_GROUP,
    names_and_rights.BUDGET,
    names_and_rights.PROFILE,
    names_and_rights.ROLE,
    names_and_rights.POLICY,
    storage.KEY,
)
# What storage that is kept can stand on.
_GROUND = (ec2.SECURITY_GROUP, ec2.SUBNET, ec2.VPC, storage.KEY)
_BY_NAME = {kind.name: kind for kind in KINDS}
# Parts of things that are in the table.
_PARTS = ("ec2:security-group-rule", "elasticfilesystem:access-point")
_UNKNOWN = "tagged resource"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 10.0
_IN_USE = ("DependencyViolation", "DeleteConflict", "IncorrectState", "BucketNotEmpty", "InvalidIPAddress.InUse")
# Of a network interface EC2 says so in words only (github.com/gruntwork-io/cloud-nuke/pull/1132).
_IN_USE_WORDS = "is currently in use"
_GONE = ("NotFound", "NoSuch", "Unknown", "ParameterNotFound", "InvalidAllocationID")


def find(cluster: str, region: str) -> Leftovers:
    """A service that refuses to be listed hides what it has, and nothing else."""
    search = _Search(Account(region), cluster)
    with_kinds = [(kind, one) for kind in KINDS for one in search.ask(kind.service, kind.name, kind.find)]
    others = search.ask("tagging", "things of other kinds", _unknown)
    if len(search.refused) > len(KINDS):
        raise search.problem(search.unseen[0])
    ground = {id_ for _, one in with_kinds if one.keep for id_ in one.stands_on if id_}
    unsure = bool({what for _, what, _ in search.refused} & {storage.LUSTRE.name, storage.EFS.name})
    known = [_leftover(kind, one, region, ground, unsure=unsure) for kind, one in with_kinds]
    return Leftovers([*known, *others], search.unseen)


def remove(leftover: Leftover, until: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
    """What is still in use, or cannot be asked for just now, is tried again `until` then (time.monotonic)."""
    if leftover.kind == _UNKNOWN:
        raise Problem(
            "",
            f"{leftover.name} is of a kind that muster never makes, what it costs is not known here",
            "look who tagged it, remove it there",
        )
    kind, account, wait = _BY_NAME[leftover.kind], Account(leftover.region), _FIRST_WAIT_S
    while True:
        try:
            return kind.remove(account, leftover.name)
        except (ClientError, BotoCoreError) as error:
            fault = classify_error(error)
            if any(word in fault.code for word in _GONE):
                return None
            if not _may_pass(fault) or time.monotonic() + wait > until:
                what = f"AWS refused to remove {leftover.kind} {leftover.name}: {fault.message or fault.code}"
                raise Problem("", what, "correct what it names, then teardown again") from None
        sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_S)


def _leftover(kind: Kind, one: Found, region: str, ground: set[str], *, unsure: bool) -> Leftover:
    kept = "keep: true" if one.keep else "needed by it" if {one.id, one.within} & ground else ""
    if unsure and kind in _GROUND:
        kept = kept or "unseen storage may need it"
    return Leftover(
        kind.name,
        one.id,
        one.created,
        one.tags.get(names.STACK, ""),
        usd_per_hour=one.usd_per_hour,
        kept=kept,
        region=region,
    )


def _unknown(account: Account, cluster: str) -> Iterator[Leftover]:
    looked_at = {arn for kind in KINDS for arn in kind.arns} | set(_PARTS)
    wanted = [{"Key": names.CLUSTER, "Values": [cluster]}]
    listed = account.pages("resourcegroupstaggingapi", "get_resources", "ResourceTagMappingList", TagFilters=wanted)
    for one in listed:
        if _type(one["ResourceARN"]) not in looked_at:
            stack = tags_of(one["Tags"]).get(names.STACK, "")
            yield Leftover(_UNKNOWN, one["ResourceARN"], stack=stack, region=account.region)


def _type(arn: str) -> str:
    """`ec2:instance` of arn:aws:ec2:us-east-1:1:instance/i-1; a bucket's address has no word for what it is."""
    service, resource = arn.split(":", 5)[2::3]
    return "s3:bucket" if service == "s3" else f"{service}:{resource.replace(':', '/').partition('/')[0]}"


@dataclass
class _Search:
    account: Account
    cluster: str
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """Service, what was looked for there, the code of the refusal."""

    def ask(self, service: str, what: str, find: Callable[[Account, str], Iterable[T]]) -> list[T]:
        """What was found before a call was refused stays found."""
        found: list[T] = []
        try:
            for one in find(self.account, self.cluster):
                found.append(one)  # noqa: PERF402  # a list made at once would lose them
        except ClientError as error:
            self.refused.append((service, what, error.response["Error"]["Code"]))
        except BotoCoreError as error:
            raise self.problem(f"{what}: {error}") from None
        return found

    @property
    def unseen(self) -> tuple[str, ...]:
        """One sentence for each service and reason."""
        told: dict[tuple[str, str], list[str]] = {}
        for service, what, code in self.refused:
            told.setdefault((service, code), []).append(what)
        return tuple(f"{service} ({', '.join(what)}) because {code}" for (service, code), what in told.items())

    def problem(self, why: str) -> Problem:
        missing = f"what is left of cluster {self.cluster} in {self.account.region} cannot be counted ({why})"
        fix = "credentials that may list it; `aws sts get-caller-identity` says whose are used"
        return Problem("aws", missing, fix)


def _may_pass(fault: Fault) -> bool:
    in_use = fault.code in _IN_USE or "InUse" in fault.code or _IN_USE_WORDS in fault.message
    return in_use or fault.kind == "throttle"
