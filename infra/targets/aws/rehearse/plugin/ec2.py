"""What calls to EC2 have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from infra.targets.aws.rehearse.plugin.calls import wait_until_available, wait_until_gone
from infra.targets.aws.rehearse.plugin.kind import (
    Aws,
    Created,
    Kind,
    Props,
    Tags,
    call_parameters,
    delete_if_exists,
    get_if_exists,
    tag_list,
    upper,
)

GONE = ("terminated", "shutting-down", "deleted", "deleting")


def find_row(aws: Aws, what: str, id_: str, **ids: Any) -> Props | None:
    """Return the row that EC2 lists for an id, or None if it does not exist."""
    rows = _list_rows(aws, what, id_, **ids)
    return next((row for row in rows if str(row.get("State", "")) not in GONE), None)


def read_state(aws: Aws, what: str, id_: str) -> str | None:
    """Return the state that EC2 shows for an id, also while it is being deleted; None if it does not list it."""
    return next((str(row["State"]) for row in _list_rows(aws, what, id_)), None)


def _list_rows(aws: Aws, what: str, id_: str, **ids: Any) -> list[Props]:
    operation = "describe" + "".join(f"_{c.lower()}" if c.isupper() else c for c in what)
    answer = get_if_exists(lambda: getattr(aws.ec2, operation)(**(ids or {f"{_id_key(what)}s": [id_]})), "Unknown")
    return (answer or {}).get(what) or []


def _id_key(what: str) -> str:
    return f"{what[:-1]}Id"


def read_properties(row: Props, names: str) -> Props:
    """Return the properties that have the same name in EC2's response."""
    return {name: row[upper(name)] for name in names.split() if upper(name) in row}


def tagging(kind: str, tags: Tags) -> list[Props]:
    """Return the tag specification of one kind of resource."""
    return [{"ResourceType": kind, "Tags": tag_list(tags)}]


def retag(aws: Aws, id_: str, _news: Props, tags: Tags) -> Props:
    """Set the tags of a resource."""
    aws.ec2.create_tags(Resources=[id_], Tags=tag_list(tags))
    return {}


def read_existence(what: str) -> Callable[[Aws, str, Props], Props | None]:
    """Return the function that reads only whether a resource exists."""
    return lambda aws, id_, _props: None if find_row(aws, what, id_) is None else {}


# Set by separate calls after creation.
_SET_AFTER_CREATION = ("enableDnsHostnames", "enableDnsSupport", "mapPublicIpOnLaunch")


def simple_kind(  # noqa: PLR0913
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
    waits: bool = False,
) -> Kind:
    """Return a kind that has the calls create_x, describe_xs and delete_x.

    With `waits`, creation takes until the resource is available and deletion until it is gone, as with the real
    provider.
    """
    call = "".join(f"_{c.lower()}" if c.isupper() else c for c in what[:-1])
    id_key, sent = _id_key(what), (replace + " " + change).replace("!", "")

    def create(aws: Aws, props: Props, tags: Tags) -> Created:
        parameters = call_parameters(props, " ".join(name for name in sent.split() if name not in _SET_AFTER_CREATION))
        answer = getattr(aws.ec2, f"create{call}")(**parameters, TagSpecifications=tagging(word, tags))
        return answer.get(what[:-1], answer)[id_key], {}

    def complete(aws: Aws, id_: str, props: Props, _tags: Tags) -> Props:
        if after:
            after(aws, id_, props)
        if waits:
            row = wait_until_available(lambda: find_row(aws, what, id_) or {}, "State")
            return read_properties(row, f"{readable} {computed}")
        return read(aws, id_, props) or {}

    def read(aws: Aws, id_: str, _props: Props) -> Props | None:
        row = find_row(aws, what, id_)
        return None if row is None else read_properties(row, f"{readable} {computed}")

    def delete(aws: Aws, id_: str, props: Props) -> None:
        if before_delete:
            delete_if_exists(lambda: before_delete(aws, id_, props))
        delete_if_exists(lambda: getattr(aws.ec2, f"delete{call}")(**{id_key: id_}))
        if waits:
            wait_until_gone(lambda: read_state(aws, what, id_))

    def update(aws: Aws, id_: str, news: Props, tags: Tags) -> Props:
        if after:
            after(aws, id_, news)
        return retag(aws, id_, news, tags)

    return Kind(
        token,
        replace,
        create,
        delete,
        read,
        change=change,
        update=update,
        complete=complete,
        computed=computed,
        tagged=True,
    )
