"""Turn plain data into a ClusterSpec, or into issues for all of its errors at once."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from cluster.plural import format_count
from cluster.spec.base import SpecModel
from cluster.spec.fields import KEY, Slot, bare, example_part, expected, is_secret, part_of, slot, slot_of, walk
from cluster.spec.issue import Issue, SpecError, error
from cluster.spec.model import ClusterSpec
from cluster.spec.written import Location, entry, path, shown

REPORTED_ERRORS = 100
"""Maximum number of reported errors; a file with more is probably not a stack file, and suggestions take time."""


def load(data: Any, model: type[ClusterSpec]) -> ClusterSpec:
    """Return the cluster that `data` describes; raise SpecError with all errors in it."""
    try:
        return model.model_validate(data)
    except ValidationError as bad:
        target = data.get("target") if isinstance(data, dict) else None
        raise SpecError(_IssueBuilder(model, target).issues(bad)) from None


class _IssueBuilder:
    """A converter of pydantic's errors into issues about the fields of one model."""

    def __init__(self, model: type[ClusterSpec], target: object) -> None:
        self._model, self._target = model, target

    def issues(self, bad: ValidationError) -> list[Issue]:
        """Return one issue per error: a misspelt key is not also missing, and an invalid item not also one too few."""
        details = bad.errors(include_url=False)
        # A section that the target cannot use is to be removed, not completed.
        unusable = dict.fromkeys(name for detail in details if self._is_unusable(name := detail["loc"][:1]))
        details = [detail for detail in details if detail["loc"][:1] not in unusable]
        parents = {detail["loc"][:-1] for detail in details}
        details = [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in parents]
        misspelt = {self._meant(detail) for detail in details[:REPORTED_ERRORS]}
        reported = [detail for detail in details if detail["type"] != "missing" or detail["loc"] not in misspelt]
        issues = [self._refuse_section(str(section)) for (section,) in unusable]
        issues += [self._issue(detail) for detail in reported[:REPORTED_ERRORS]]
        if (more := len(reported) - REPORTED_ERRORS) > 0:
            issues.append(error("more_errors", path(()), format_count(more, "more error"), "fix these first"))
        return issues

    def _is_unusable(self, section: Location) -> bool:
        """Return whether this is the section of a target that exists but is not the spec's."""
        names = _choices(slot_of(self._model.model_fields["target"]))
        return bool(section) and self._target in names and section[0] != self._target and section[0] in names

    def _refuse_section(self, name: str) -> Issue:
        message = f"target '{self._target}' cannot use it; targets that can: {name}"
        return error("target_field", name, message, f"remove it, or write `target: {name}`")

    def _meant(self, detail: ErrorDetails) -> Location:
        """Return the location of the key that was probably meant by a misspelt key."""
        if detail["type"] != "extra_forbidden":
            return ()
        near = self._nearest(self._as_written(detail["loc"]))
        return (*detail["loc"][:-1], *near)

    def _issue(self, detail: ErrorDetails) -> Issue:
        location = self._as_written(detail["loc"])
        place = slot(self._model, location)
        if detail["type"] in ("extra_forbidden", "invalid_key"):
            return self._unknown(location)
        if place is None:
            return error("wrong_value", path(location), detail["msg"], "see docs/spec.md for the allowed values")
        if detail["type"] == "missing":
            message = f"required, but missing; expected {expected(place)}"
            return error("missing", path(location), message, f"add `{_example(location, place)}`")
        if location[-1:] == KEY:
            message = f"the key {shown(detail['input'])} is not {expected(place)}"
            return error("wrong_key", path(location[:-1]), message, "rename it")
        return _wrong(location, place, detail)

    def _unknown(self, location: Location) -> Issue:
        allowed, near = self._keys(location), self._nearest(location)
        fix = f"rename it to `{near[0]}`" if near else "remove it, or use one of the allowed keys"
        if str(location[-1]).startswith("memory_") and "size" in allowed:
            fix = "write `size: {memory_mb: ...}`, in MiB"
        elif location == ("slurm", "version"):
            fix = "write `software: {slurm: ...}`"
        elif not near and (home := self._home(str(location[-1]))):
            fix = f"move it to `{home}`, or remove it"
        return error("unknown_key", path(location), f"unknown key; allowed: {', '.join(allowed)}", fix)

    def _keys(self, location: Location) -> list[str]:
        """Return the keys that are allowed at this location."""
        holder = slot(self._model, location[:-1])
        part: type[SpecModel] = (part_of(holder.annotation) if holder else None) or self._model
        return sorted(part.model_fields)

    def _nearest(self, location: Location) -> list[str]:
        return get_close_matches(str(location[-1]), self._keys(location), n=1)

    def _home(self, key: str) -> str:
        """Return the path of the only field with this name that the target can use; empty if there is none."""
        others = {name for name in _choices(slot_of(self._model.model_fields["target"])) if name != self._target}
        paths = [where for where, _ in walk(self._model) if where.split(".")[-1] == key]
        usable = [where for where in paths if where.split(".")[0] not in others]
        return usable[0] if len(usable) == 1 else ""

    def _as_written(self, location: Location) -> Location:
        """Return the location with mapping keys as text; only indices of lists stay numbers."""
        places = [slot(self._model, location[:depth]) for depth in range(len(location))]
        lists = [place is not None and get_origin(bare(place.annotation)) is tuple for place in places]
        return tuple(key if in_list else str(key) for key, in_list in zip(location, lists, strict=True))


def _wrong(location: Location, place: Slot, detail: ErrorDetails) -> Issue:
    if is_secret(place):
        code = "wrong_type" if detail["type"].endswith("_type") else "wrong_value"
        fix = f"write for example `{_example(location, place)}`"
        return error(code, path(location), f"this is not {expected(place)} (value not shown)", fix)
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
    # A quoted number would be refused again where only some texts are allowed.
    if expected(place) == "text" and isinstance(value, int | float):
        return f"put it in quotes: `{entry(location, shown(value))}`"
    return f"write for example `{_example(location, place)}`"


def _first(place: Slot) -> str:
    """Return the first allowed value of a choice, or a placeholder."""
    return next(iter(_choices(place)), "text")


def _choices(place: Slot) -> list[str]:
    return [option for option in get_args(bare(place.annotation)) if isinstance(option, str)]


def _example(location: Location, place: Slot) -> str:
    part = part_of(place.annotation)
    example = place.example if place.example is not None else example_part(part) if part else _first(place)
    return entry(location, to_jsonable_python(example, exclude_none=True))
