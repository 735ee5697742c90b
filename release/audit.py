"""Whether locked Python packages have known vulnerabilities: pip-audit, asking the database of osv.dev.

    python -m release.audit     exit code 0: none; 1: some; 75: the database does not answer

MUSTER_AUDIT=required makes it a failure if the database does not answer. MUSTER_OSV_URL names another server with the
same interface.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from release.components import Component, list_components
from release.cves import read_accepted

DATABASE = "https://api.osv.dev/v1/query"
NOT_RUN = os.EX_TEMPFAIL
CONNECT_TIMEOUT_S = 5


# Answers of a database that works: the probe is no query, so a server may refuse it.
WORKING = (200, 404, 405)
# What pip-audit prints if a connection failed, not the audit.
_NETWORK = re.compile(r"(?m)^requests\.exceptions\.(?:\w*ConnectionError|\w*Timeout)\b|Could not connect to")


class AuditError(Exception):
    """pip-audit gave no report; the message is its own."""


class ConnectionFailedError(AuditError):
    """The database stopped answering."""


def main(*, required: bool = False) -> int:
    """Audit all lock files, print the result and return the exit code."""
    url = os.environ.get("MUSTER_OSV_URL") or DATABASE
    missing = 1 if required or os.environ.get("MUSTER_AUDIT") == "required" else NOT_RUN
    if reason := find_obstacle(url):
        print(f"pip-audit did not run: {url} does not answer ({reason})")
        return missing
    packages = [component for component in list_components() if component.kind == "pypi"]
    problems, obstacles = [], []
    for group in split_versions(packages):
        try:
            report = _run_pip_audit(url, group)
        except ConnectionFailedError as error:
            obstacles.append(f"pip-audit did not run to the end: {error}")
        except AuditError as error:
            problems.append(f"pip-audit failed: {error}")
        else:
            problems += [*find_problems(report), *find_left_out(report, group)]
    print("\n".join([*problems, *obstacles]) or f"{len(packages)} packages, no known vulnerability")
    if problems:
        return 1
    return missing if obstacles else 0


def find_obstacle(url: str) -> str:
    """Return why a server cannot be used; empty if it answers as a database that works."""
    try:
        urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S).close()  # noqa: S310  # the scheme is the operator's
    except urllib.error.HTTPError as error:
        return "" if error.code in WORKING else str(error)
    except (OSError, HTTPException, ValueError) as error:
        return str(error)
    return ""


def find_problems(report: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each vulnerability in a report of pip-audit, and for each package that it left out."""
    for package in report["dependencies"]:
        name = f"{package['name']} {package.get('version', '')}".strip()
        if reason := package.get("skip_reason"):
            yield f"{name}: not audited: {reason}"
        for entry in package.get("vulns", ()):
            ids = ", ".join([entry["id"], *entry["aliases"]])
            fixed = ", ".join(entry["fix_versions"]) or "no version yet"
            yield f"{name}: {ids}; fixed in {fixed}"


def find_left_out(report: dict[str, Any], packages: Iterable[Component]) -> Iterator[str]:
    """Yield a line for each package that a report does not mention."""
    reported = {_normalize(package["name"]) for package in report["dependencies"]}
    for package in packages:
        if _normalize(package.name) not in reported:
            yield f"{package.name} {package.version}: not audited: pip-audit's report does not mention it"


def split_versions(packages: Iterable[Component]) -> list[list[Component]]:
    """Return groups that have no package twice: locks may hold several versions, pip-audit accepts one per run."""
    groups: list[dict[str, Component]] = []
    for package in packages:
        group = next((group for group in groups if package.name not in group), None)
        if group is None:
            groups.append(group := {})
        group[package.name] = package
    return [list(group.values()) for group in groups]


def _run_pip_audit(url: str, packages: Iterable[Component]) -> dict[str, Any]:
    accepted = [argument for name in read_accepted() for argument in ("--ignore-vuln", name)]
    options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off", "--desc", "off"]
    with tempfile.TemporaryDirectory() as scratch:
        # Without the locks' markers, so that packages of other systems are audited too.
        file = Path(scratch) / "requirements.txt"
        file.write_text("".join(f"{package.name}=={package.version}\n" for package in packages))
        # Answers are not cached between runs: a vulnerability may be published at any time.
        database = ["--vulnerability-service", "osv", "--osv-url", url, "--cache-dir", f"{scratch}/cache"]
        command = [sys.executable, "-m", "pip_audit", *options, *database, *accepted, "--requirement", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        reason = done.stderr.strip()
        raise (ConnectionFailedError if _NETWORK.search(reason) else AuditError)(reason) from None
    return report


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
