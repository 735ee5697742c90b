"""Names of a cluster's resources on AWS: one prefix, one private domain, the same tags on all of them."""

from __future__ import annotations

from collections.abc import Mapping

from cluster import names

DOMAIN = "muster.internal"
NAME_TAG = "Name"


def prefixed(cluster: str, *parts: str) -> str:
    """Return the name of a resource of a cluster."""
    return "-".join(("muster", cluster, *parts))


def domain(cluster: str) -> str:
    """Return the private DNS domain of a cluster."""
    return f"{cluster}.{DOMAIN}"


def zone_comment(cluster: str) -> str:
    """Return the comment of a cluster's private DNS zone, which it has before it is tagged."""
    return f"nodes of muster cluster {cluster}"


def bucket(cluster: str, account: str, region: str) -> str:
    """Return the name of a cluster's bucket, which has to be unique in all of AWS."""
    return prefixed(cluster, account, region)


def cluster_tags(cluster: str, stack: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the tags of every resource; the user's tags cannot override those that teardown and policies rely on."""
    return {**extra, names.CLUSTER: cluster, names.STACK: stack}


def keep_tag(keep: bool) -> dict[str, str]:
    """Return the tag that stops teardown from removing a resource that outlives its cluster."""
    return {names.KEEP: "true"} if keep else {}


def name_tag(cluster: str, *parts: str) -> dict[str, str]:
    """Return the tag that the AWS console shows as the name."""
    return {NAME_TAG: prefixed(cluster, *parts)}
