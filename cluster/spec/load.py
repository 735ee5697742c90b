"""From plain data to a ClusterSpec, or every problem at once: where it is, what stands there, what may, the fix."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from cluster.spec.fields import KEY, Slot, bare, example_part, expected, part_of, slot
from cluster.spec.issue import Issue, SpecError, error
from cluster.spec.model import ClusterSpec, Part
from cluster.spec.stack_file import cluster_of
from cluster.spec.written import Location, entry, path, shown


def read(stack_file: Path) -> ClusterSpec:
    """The cluster of a stack file; raises SpecError."""
    return load(cluster_of(stack_file))


def load(data: Any) -> ClusterSpec:
    """The cluster that `data` describes; raises SpecError with all its problems."""
    try:
        return ClusterSpec.model_validate(data)
    except ValidationError as bad:
        details = bad.errors(include_url=False)
        meant = {_meant(detail) for detail in details}
        told = [one for one in details if one["type"] != "missing" or one["loc"] not in meant]
        raise SpecError([_issue(one) for one in told]) from None


def _meant(detail: ErrorDetails) -> Location:
    """Where a misspelt key belongs: what is missing there is not missing, and one problem is told once."""
    if detail["type"] != "extra_forbidden":
        return ()
    near = _nearest(_as_written(detail["loc"]))
    return (*detail["loc"][:-1], *near)


def _issue(detail: ErrorDetails) -> Issue:
    location = _as_written(detail["loc"])
    place = slot(location)
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        return _unknown(location)
    if place is None:
        return error("wrong_value", path(location), detail["msg"], "see docs/spec.md for what may stand there")
    if detail["type"] == "missing":
        message = f"required, but missing; expected {expected(place)}"
        return error("missing", path(location), message, f"add `{_example(location, place)}`")
    if location[-1:] == KEY:
        message = f"the key {shown(detail['input'])} is not {expected(place)}"
        return error("wrong_key", path(location[:-1]), message, "rename it")
    return _wrong(location, place, detail)


def _unknown(location: Location) -> Issue:
    allowed, near = _keys(location), _nearest(location)
    fix = f"rename it to `{near[0]}`" if near else "remove it, or use one of the allowed keys"
    return error("unknown_key", path(location), f"unknown key; allowed: {', '.join(allowed)}", fix)


def _keys(location: Location) -> list[str]:
    """Those that may stand where this one does."""
    holder = slot(location[:-1])
    part: type[Part] = (part_of(holder.annotation) if holder else None) or ClusterSpec
    return sorted(part.model_fields)


def _nearest(location: Location) -> list[str]:
    return get_close_matches(str(location[-1]), _keys(location), n=1)


def _wrong(location: Location, place: Slot, detail: ErrorDetails) -> Issue:
    value = detail["input"]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    code = "wrong_type" if detail["type"].endswith("_type") or (number and _choices(place)) else "wrong_value"
    prefix = "the number " if number and (_choices(place) or bare(place.annotation) is str) else ""
    message = f"{prefix}{shown(value)} is not {expected(place)}"
    return error(code, path(location), message, _fix(location, place, value))


def _fix(location: Location, place: Slot, value: Any) -> str:
    near = get_close_matches(str(value), _choices(place), n=1)
    if near:
        return f"write `{entry(location, near[0])}`"
    if bare(place.annotation) is str and isinstance(value, int | float):
        return f"put it in quotes: `{entry(location, shown(value))}`"
    return f"write for example `{_example(location, place)}`"


def _choices(place: Slot) -> list[str]:
    return [option for option in get_args(bare(place.annotation)) if isinstance(option, str)]


def _example(location: Location, place: Slot) -> str:
    part = part_of(place.annotation)
    example = place.example if place.example is not None else example_part(part) if part else "text"
    return entry(location, to_jsonable_python(example, exclude_none=True))


def _as_written(location: Location) -> Location:
    """Numbers are kept only where they count the entries of a list; a key of a mapping may be a number too."""
    places = [slot(location[:depth]) for depth in range(len(location))]
    lists = [place is not None and get_origin(bare(place.annotation)) is tuple for place in places]
    return tuple(key if in_list else str(key) for key, in_list in zip(location, lists, strict=True))
