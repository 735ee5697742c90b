"""What things on AWS are called: one prefix, one private domain, the same tags on all of them."""

from __future__ import annotations

from collections.abc import Mapping

from cluster import names

DOMAIN = "muster.internal"
NAME_TAG = "Name"


def prefixed(cluster: str, *parts: str) -> str:
    return "-".join(("muster", cluster, *parts))


def domain(cluster: str) -> str:
    return f"{cluster}.{DOMAIN}"


def bucket(cluster: str, account: str, region: str) -> str:
    """Bucket names are shared by all of AWS: account and region keep clusters of the same name apart."""
    return prefixed(cluster, account, region)


def cluster_tags(cluster: str, stack: str, extra: Mapping[str, str]) -> dict[str, str]:
    """On everything. The user's own tags cannot take the place of ours: teardown and permissions go by them."""
    return {**extra, names.CLUSTER: cluster, names.STACK: stack}


def kept(keep: bool) -> dict[str, str]:
    """On what outlives its cluster: teardown finds things by their tags, and must not take these."""
    return {names.KEEP: "true"} if keep else {}


def named(cluster: str, *parts: str) -> dict[str, str]:
    """What the console shows."""
    return {NAME_TAG: prefixed(cluster, *parts)}
