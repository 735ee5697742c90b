"""Rules on scheduler settings: valid time limits, and no slurm.conf keys that the cluster sets itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches

from cluster.catalog.similar import MAX_COMPARED_CHARACTERS
from cluster.spec import ClusterSpec, Partition, SlurmOptions
from cluster.spec.issue import Issue, error
from cluster.spec.written import path
from infra.validate.managed_keys import MANAGED, describe_danger

DAYS = re.compile(r"(\d{1,6})-(\d{1,2})(?::(\d{1,2}))?(?::(\d{1,2}))?")
CLOCK = re.compile(r"\d{1,8}(?::\d{1,2}){0,2}")
WEIGHTS = {1: (60,), 2: (60, 1), 3: (3600, 60, 1)}
FOREVER = ("UNLIMITED", "INFINITE")
FORMS = "minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes:seconds, UNLIMITED"


def check_default_group(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a default group or partition that does not exist."""
    named, allowed = spec.slurm.default_group, [*spec.groups, *spec.slurm.partitions]
    if named is not None and named not in allowed:
        near = get_close_matches(named[:MAX_COMPARED_CHARACTERS], allowed, n=1, cutoff=0)[0]
        message = f"'{named}' is not a group; allowed: {', '.join(allowed)}"
        yield error("no_such_group", "slurm.default_group", message, f"write `default_group: {near}`")


def check_time_limits(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse time limits that Slurm cannot read."""
    for section, options in _sections_with_times(spec).items():
        for name in ("default_time", "max_time"):
            value = getattr(options, name)
            if value is not None and not parse_time_limit(value):
                message = f"'{value}' is not a time limit; allowed: {FORMS}"
                yield error("time_format", f"{section}.{name}", message, f'write for example `{name}: "1:00:00"`')


def check_time_order(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse a default time limit above the longest one."""
    for section, options in _sections_with_times(spec).items():
        default_text, longest_text = (
            options.default_time or spec.slurm.default_time,
            options.max_time or spec.slurm.max_time,
        )
        default, longest = parse_time_limit(default_text), parse_time_limit(longest_text)
        # A partition without times of its own repeats those of the section `slurm`.
        own = options.default_time is not None or options.max_time is not None
        if own and default and longest and default > longest:
            message = f"'{default_text}' is longer than max_time ('{longest_text}')"
            fix = f'write `default_time: "{longest_text}"`, or raise max_time'
            yield error("time_order", f"{section}.default_time", message, fix)


def check_extra_keys(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse keys that are malformed, repeated in another case, dangerous, or set by the cluster itself."""
    managed = {key.lower(): key for key in MANAGED}
    seen: dict[str, str] = {}
    for key in spec.slurm.extra:
        where, first_spelling = path(("slurm", "extra", key)), seen.setdefault(key.lower(), key)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", key):
            message = f"'{key}' is not a key of slurm.conf; allowed: letters and digits"
            yield error("extra_key", where, message, "rename it, for example `MaxArraySize`")
        elif key.lower() in managed:
            field = MANAGED[managed[key.lower()]]
            fix = f"remove it and set `{field}`" if field else "remove it: the cluster does not work without its own"
            yield error("extra_managed", where, f"`{managed[key.lower()]}` is set by the cluster itself", fix)
        elif danger := describe_danger(key):
            message = (
                f"`{key}: {spec.slurm.extra[key][:40]}` {danger} on all nodes; allowed: keys that run no "
                "program, load no code, name no file of a daemon and do not change who is trusted"
            )
            yield error(
                "extra_refused", where, message, "remove it; install programs of your own in the image of the nodes"
            )
        elif first_spelling != key:
            message = f"`{key}` and `{first_spelling}` are the same key: Slurm ignores case"
            yield error("extra_twice", where, message, "remove one of them")


def check_extra_values(spec: ClusterSpec) -> Iterator[Issue]:
    """Refuse values that would start another line of slurm.conf or be cut off as a comment."""
    for key, value in spec.slurm.extra.items():
        if not value.strip() or not value.isprintable() or "#" in value:
            message = f"{value[:40]!r} is not a valid value; allowed: one line of text, not empty, without '#'"
            yield error("extra_value", path(("slurm", "extra", key)), message, f'write for example `{key}: "1"`')


def _sections_with_times(spec: ClusterSpec) -> dict[str, SlurmOptions | Partition]:
    """Return what has time limits, by its property path."""
    partitions = {path(("slurm", "partitions", name)): each for name, each in spec.slurm.partitions.items()}
    return {"slurm": spec.slurm, **partitions}


def parse_time_limit(text: str) -> float | None:
    """Return a Slurm time limit in seconds, or None if the text is not one."""
    if text.upper() in FOREVER:
        return float("inf")
    if days := DAYS.fullmatch(text):
        return sum(int(n or 0) * weight for n, weight in zip(days.groups(), (86400, 3600, 60, 1), strict=True))
    if not CLOCK.fullmatch(text):
        return None
    parts = text.split(":")
    return sum(int(part) * weight for part, weight in zip(parts, WEIGHTS[len(parts)], strict=True))
