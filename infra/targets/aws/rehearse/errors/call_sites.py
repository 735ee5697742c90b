"""Call sites: the kinds of calls that each command of muster makes of AWS.

The list is traced, not designed: a rehearsal of errors fails if a command makes a call that the list does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from infra.targets.aws.rehearse.moto_errors import render_error

SITES_FILE = Path(__file__).with_name("call_sites.txt")
NUMBER = " #"
"""Separates the name of a site from the number of the call, where each call of an operation is a site."""
_SEPARATOR = ": "
# Parts of a path that are ids or names: of zones, filesystems, mount targets, access points and objects.
_ID = re.compile(r"(?:[A-Z0-9]{8,}|(?:fs|fsmt|fsap|subnet|sg|vpc|eni)-[0-9a-f]+|policy-[0-9a-f]+|arn:.*)$")


def name_site(service: str, action: str, params: Mapping[str, str]) -> str:
    """Return the name of a kind of call, the same whichever resource it is for."""
    method, _, path = action.partition(" ")
    if not path:
        return f"{service} {action}"
    option = params.get("query", "").split("&")[0].partition("=")[0]
    if service == "s3":
        parts = [part for part in path.split("/") if part]
        path = "/".join(["", "bucket", "object"][: len(parts[:2]) + 1])
    else:
        path = "/".join("*" if _ID.match(part) else part for part in path.rstrip("/").split("/"))
    return f"{service} {method} {path or '/'}{f'?{option}' if option else ''}"


def read_sites(text: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return the sites of each command."""
    sites: dict[str, list[str]] = {}
    for line in (SITES_FILE.read_text() if text is None else text).splitlines():
        command, _, site = line.partition(_SEPARATOR)
        sites.setdefault(command, []).append(site)
    return {command: tuple(listed) for command, listed in sites.items()}


def render_sites(sites: Iterable[tuple[str, str]]) -> str:
    """Return the list of sites, each with its command, as the file has it."""
    return "".join(f"{command}{_SEPARATOR}{site}\n" for command, site in sorted(set(sites)))


def visible_code(site: str, code: str) -> str:
    """Return what a caller learns of an error: an answer to HEAD has no body, so only its status is known."""
    service, method = site.split()[:2]
    return render_error(service, code)[0].split()[0] if method == "HEAD" else code
