"""Shapes that calls of EC2 have in common, whatever they are about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.infra.targets.aws.with_engine.plugin.kind import (
    Aws,
    Kind,
    Made,
    Props,
    Tags,
    asked,
    found,
    listed,
    removed,
    upper,
)

GONE = ("terminated", "shutting-down", "deleted", "deleting")


def one(aws: Aws, what: str, id_: str, **ids: Any) -> Props | None:
    """One of what EC2 lists under this word."""
    operation = "describe" + "".join(f"_{c.lower()}" if c.isupper() else c for c in what)
    answer = found(lambda: getattr(aws.ec2, operation)(**(ids or {f"{_id(what)}s": [id_]})), "Unknown")
    rows = (answer or {}).get(what) or []
    return next((row for row in rows if str(row.get("State", "")) not in GONE), None)


def _id(what: str) -> str:
    return f"{what[:-1]}Id"


def seen(row: Props, names: str) -> Props:
    """Properties as EC2 tells them, for those that have the same name there."""
    return {name: row[upper(name)] for name in names.split() if upper(name) in row}


def tagging(kind: str, tags: Tags) -> list[Props]:
    return [{"ResourceType": kind, "Tags": listed(tags)}]


def retag(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    aws.ec2.create_tags(Resources=[id_], Tags=listed(tags))
    return {}


def there(what: str) -> Callable[[Aws, str, Props], Props | None]:
    return lambda aws, id_, _props: None if one(aws, what, id_) is None else {}


# Set by calls of their own once the thing exists.
_LATER = ("enableDnsHostnames", "enableDnsSupport", "mapPublicIpOnLaunch")


def simple(  # noqa: PLR0913
    token: str,
    what: str,
    replace: str,
    *,
    word: str,
    change: str = "",
    computed: str = "",
    after: Callable[[Aws, str, Props], None] | None = None,
    before_delete: Callable[[Aws, str, Props], None] | None = None,
    readable: str = "",
) -> Kind:
    """What is made by create_x, described by describe_xs and removed by delete_x."""
    call = "".join(f"_{c.lower()}" if c.isupper() else c for c in what[:-1])
    id_key, sent = _id(what), (replace + " " + change).replace("!", "")

    def create(aws: Aws, props: Props, tags: Tags) -> Made:
        wanted = asked(props, " ".join(one for one in sent.split() if one not in _LATER))
        answer = getattr(aws.ec2, f"create{call}")(**wanted, TagSpecifications=tagging(word, tags))
        row = answer.get(what[:-1], answer)
        if after:
            after(aws, row[id_key], props)
        return row[id_key], read(aws, row[id_key], props) or {}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        row = one(aws, what, id_)
        return None if row is None else seen(row, f"{readable} {computed}")

    def delete(aws: Aws, id_: str, props: Props) -> None:
        if before_delete:
            removed(lambda: before_delete(aws, id_, props))
        removed(lambda: getattr(aws.ec2, f"delete{call}")(**{id_key: id_}))

    def update(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
        if after:
            after(aws, id_, news)
        return retag(aws, id_, news, tags)

    return Kind(token, replace, create, delete, read, change=change, update=update, computed=computed, tagged=True)
