"""Instance types outside the catalog: AWS describes their hardware, and a file in MUSTER_HOME stores the answer.

`muster check`, `cost` and `up` look them up before the rules run; the Pulumi program reads the file.
"""

# ruff: noqa: PLC0415
# AWS's libraries are imported inside functions: every command imports every target's class.
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cluster.catalog.described import to_entry
from cluster.catalog.instances import add_types, is_reviewed, replace_types, unverified
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import warning
from infra.home import Home
from infra.resources.error import ResourceError
from infra.targets.aws.spec import region_of
from infra.targets.aws.validate.types import list_type_names

if TYPE_CHECKING:
    from infra.targets.aws.preflight import Account

FILE = "aws-instance-types.json"
REHEARSED_FILE = "aws-rehearsed-types.json"
"""Types with the sizes of the containers that stand for them; only the home of a rehearsal has this file."""
_NO_SUCH_TYPE = "InvalidInstanceType"
Entries = dict[str, dict[str, Any]]
"""Types in the form of the catalog's instances.json, by name."""


def load_stored_types() -> None:
    """Add the types that were looked up before; in the home of a rehearsal, also replace those that it scales down."""
    add_types(_read(_path()))
    replace_types(_read(Home.of(os.environ).root / REHEARSED_FILE))


def read_stored_types(root: Path) -> Entries:
    """Return the types that were looked up before, from the home of the cluster's commands."""
    return _read(root / FILE)


def has_unknown_types(spec: ClusterSpec) -> bool:
    """Return whether a spec names types that are neither in the catalog nor stored for its region."""
    return bool(list_missing(list_type_names(spec).values(), _read(_path()), region_of(spec)))


def look_up_types(spec: ClusterSpec) -> list[Issue]:
    """Ask AWS for the types of a spec that are neither in the catalog nor stored; do nothing without credentials.

    Return a warning for each type whose look-up failed; a type that does not exist is no failure.
    """
    from infra.targets.aws.account import find_account

    stored, region = _read(_path()), region_of(spec)
    names = list_type_names(spec)
    missing = list_missing(names.values(), stored, region)
    if not missing or not region:
        return []
    try:
        account = find_account(spec)
    except ResourceError:
        # The pre-flight reports what is wrong with the credentials.
        return []
    if account is None:
        return []
    described, failures = describe_types(account, missing)
    if described:
        _write(_path(), merge_types(stored, described, region))
    return [_warn(where, name, failures[name]) for where, name in names.items() if name in failures]


def list_missing(names: Iterable[str], stored: Entries, region: str) -> list[str]:
    """Return the names that must be looked up: unknown, or stored for other regions only."""
    return sorted(
        {
            name
            for name in names
            if name and not is_reviewed(name) and name not in unverified()
            if region not in stored.get(name, {}).get("regions", [])
        }
    )


def merge_types(stored: Entries, described: Mapping[str, Mapping[str, Any]], region: str) -> Entries:
    """Return the stored types with those that AWS describes in a region, and describes completely."""
    new: Entries = {}
    for name, answer in described.items():
        regions = sorted({*stored.get(name, {}).get("regions", []), region})
        # Old types lack, for example, the number of cores; they stay unknown.
        with suppress(LookupError):
            new[name] = to_entry(answer, regions)
    return {**stored, **new}


def describe_types(account: Account, names: Iterable[str]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return AWS's description of each type that exists in the region, and the error code of each failed call."""
    from botocore.exceptions import BotoCoreError, ClientError

    from infra.targets.aws.launcher.errors import classify_error

    described: dict[str, dict[str, Any]] = {}
    failures: dict[str, str] = {}
    for name in names:
        # One by one: a single name that does not exist makes AWS reject the whole request.
        try:
            answer = account.client("ec2").describe_instance_types(InstanceTypes=[name])
        except (ClientError, BotoCoreError) as failure:
            if (code := classify_error(failure).code) != _NO_SUCH_TYPE:
                failures[name] = code
            continue
        described |= {entry["InstanceType"]: entry for entry in answer["InstanceTypes"]}
    return described, failures


def _warn(where: str, name: str, code: str) -> Issue:
    message = f"'{name}' could not be looked up in the account (DescribeInstanceTypes: {code})"
    fix = "allow the caller ec2:DescribeInstanceTypes, or check credentials and network, and run it again"
    return warning("type_not_looked_up", where, message, fix)


def _path() -> Path:
    return Home.of(os.environ).root / FILE


def _read(path: Path) -> Entries:
    try:
        entries: Entries = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return entries


def _write(path: Path, entries: Entries) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(entries, indent=1, sort_keys=True) + "\n")
    new.replace(path)
