"""Whether locked Python packages have known vulnerabilities: pip-audit, asking the database of osv.dev.

    python -m release.audit     exit code 0: none; 1: some; 75: the database does not answer

MUSTER_AUDIT=required makes it a failure if the database does not answer. MUSTER_OSV_URL names another server with the
same interface.
"""

from __future__ import annotations

import json
import os
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


class AuditError(Exception):
    """pip-audit gave no report; the message is its own."""


def main(*, required: bool = False) -> int:
    """Audit all lock files, print the result and return the exit code."""
    url = os.environ.get("MUSTER_OSV_URL") or DATABASE
    if reason := find_obstacle(url):
        print(f"pip-audit did not run: {url} does not answer ({reason})")
        return 1 if required or os.environ.get("MUSTER_AUDIT") == "required" else NOT_RUN
    packages = [component for component in list_components() if component.kind == "pypi"]
    try:
        problems = [line for group in split_versions(packages) for line in find_problems(_run_pip_audit(url, group))]
    except AuditError as error:
        problems = [f"pip-audit failed: {error}"]
    print("\n".join(problems) or f"{len(packages)} packages, no known vulnerability")
    return 1 if problems else 0


def find_obstacle(url: str) -> str:
    """Return why a server cannot be reached; empty if it answers, whatever the answer is."""
    try:
        urllib.request.urlopen(url, timeout=CONNECT_TIMEOUT_S).close()  # noqa: S310  # the scheme is the operator's
    except urllib.error.HTTPError:
        return ""
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
        raise AuditError(done.stderr.strip()) from None
    return report


if __name__ == "__main__":
    sys.exit(main())
