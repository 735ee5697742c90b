"""Information about the fields of the spec, shared by error messages, documents and update rules."""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from cluster.spec.base import SECRET, Policy, SpecModel
from cluster.spec.model import ClusterSpec
from cluster.spec.patterns import PATTERN_WORDS
from cluster.spec.written import inline

KEY = ("[key]",)
NUMBERS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Slot:
    """The type, the limits and an example of a value in the spec."""

    annotation: Any
    limits: Sequence[object] = ()
    example: Any = None


def walk(model: type[SpecModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every field with its path; names of groups, storage and users are shown as `<name>`."""
    for name, info in model.model_fields.items():
        path = prefix + name
        yield path, info
        part, item = part_of(info.annotation), item_of(info.annotation)
        if part:
            yield from walk(part, f"{path}.")
        elif item and (item_part := part_of(item)):
            yield from walk(item_part, f"{path}.<name>.")


def slot(model: type[ClusterSpec], location: Sequence[str | int]) -> Slot | None:
    """Return the slot at `location` (keys from the top of a spec); None if there is none.

    pydantic appends `[key]` to the location of an error about a key itself.
    """
    if location[-1:] == KEY and (mapping := slot(model, location[:-2])) and item_of(mapping.annotation):
        return _annotated_slot(get_args(bare(mapping.annotation))[0])
    here: Slot | None = Slot(model)
    for key in location:
        here = _step(here, key) if here else None
    return here


def slot_of(info: FieldInfo) -> Slot:
    """Return the slot of a field's value."""
    return Slot(info.annotation, tuple(info.metadata), _example_of(info))


def example_part(part: type[SpecModel]) -> dict[str, Any]:
    """Return a small example of a section: its required fields, or its first field if none is required."""
    required = [name for name, info in part.model_fields.items() if info.is_required()]
    shown = required or list(part.__annotations__)[:1]
    return {name: _example_of(part.model_fields[name]) for name in shown}


def policy_of(info: FieldInfo) -> Policy:
    """Return what changing the field does to a running cluster."""
    policy: Policy = info.json_schema_extra["policy"]  # type: ignore[index,assignment]
    return policy


def is_secret(place: Slot) -> bool:
    """Return whether a value must not be shown: it is a secret, or stands where a section with a secret belongs."""
    part = part_of(place.annotation)
    fields = part.model_fields.values() if part else ()
    return SECRET in place.limits or any(SECRET in info.metadata for info in fields)


def part_of(annotation: Any) -> type[SpecModel] | None:
    """Return the model that a field holds; None for plain values, lists and mappings."""
    kind = bare(annotation)
    return kind if isinstance(kind, type) and issubclass(kind, SpecModel) else None


def item_of(annotation: Any) -> Any:
    """Return the type of a mapping's values; None for anything else."""
    kind = bare(annotation)
    return get_args(kind)[1] if get_origin(kind) is dict else None


def bare(annotation: Any) -> Any:
    """Return the type without limits and without `None`."""
    if get_origin(annotation) is Annotated:
        return bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return bare(next(a for a in get_args(annotation) if a is not types.NoneType))
    return annotation


def expected(place: Slot) -> str:
    """Describe the allowed values, e.g. `a whole number from 1 to 512`."""
    kind = bare(place.annotation)
    if part := part_of(kind):
        return f"a mapping with the keys {', '.join(sorted(part.model_fields))}"
    if kind in NUMBERS:
        return NUMBERS[kind] + _describe_range(place.limits)
    if kind is str:
        return str(_limit(place.limits, "text") or PATTERN_WORDS.get(_limit(place.limits, "pattern"), "text"))
    return _DESCRIPTIONS[get_origin(kind) or kind](kind, place.limits)


def _step(here: Slot, key: str | int) -> Slot | None:
    kind = bare(here.annotation)
    if part := part_of(kind):
        info = part.model_fields.get(str(key))
        return slot_of(info) if info else None
    if get_origin(kind) is dict:
        return _annotated_slot(get_args(kind)[1])
    return _annotated_slot(get_args(kind)[0]) if get_origin(kind) is tuple else here


def _example_of(info: FieldInfo) -> Any:
    return info.examples[0] if info.examples else info.default


def _annotated_slot(annotation: Any) -> Slot:
    if get_origin(annotation) is not Annotated:
        return Slot(annotation)
    kind, *limits = get_args(annotation)
    return Slot(kind, [m for limit in limits for m in (limit.metadata if isinstance(limit, FieldInfo) else [limit])])


def _describe_mapping(mapping: Any, limits: Sequence[object]) -> str:
    at_least = " with at least one entry" if _limit(limits, "min_length") else ""
    part = part_of(get_args(mapping)[1])
    items = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", part.__name__).lower() + "s" if part else "text"
    return f"a mapping from names to {items}{at_least}"


def _describe_choice(choice: Any, _limits: Sequence[object]) -> str:
    return f"one of {', '.join(map(inline, get_args(choice)))}"


def _describe_list(sequence: Any, _limits: Sequence[object]) -> str:
    item = get_args(sequence)[0]
    if get_origin(item) is Literal:
        return f"a list with any of {', '.join(map(inline, get_args(item)))}"
    return "a list of names" if get_origin(item) is Annotated else "a list of text"


def _describe_range(limits: Sequence[object]) -> str:
    low, high, above = (_limit(limits, name) for name in ("ge", "le", "gt"))
    if above is not None:
        return f" above {above}"
    return f" from {low} to {high}"


def _limit(limits: Sequence[object], name: str) -> Any:
    return next((getattr(m, name) for m in limits if getattr(m, name, None) is not None), None)


_DESCRIPTIONS: dict[Any, Callable[[Any, Sequence[object]], str]] = {
    Literal: _describe_choice,
    dict: _describe_mapping,
    tuple: _describe_list,
    bool: lambda _kind, _limits: "true or false",
}
