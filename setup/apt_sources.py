"""The machine's own apt sources, read so that nodes are made from the same mirror."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Source:
    uri: str
    suite: str
    keyring: str | None = None


@dataclass(frozen=True)
class Mirrors:
    """Where a suite and, if the host has them too, its updates and security updates come from."""

    main: Source
    updates: Source | None = None
    security: Source | None = None


def read(directory: Path = Path("/etc/apt")) -> tuple[Source, ...]:
    found: list[Source] = []
    parts = directory / "sources.list.d"
    for path in (directory / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))):
        if path.is_file():
            text = path.read_text(errors="replace")
            found += parse_deb822(text) if path.suffix == ".sources" else parse_lines(text)
    return tuple(found)


def parse_lines(text: str) -> list[Source]:
    """The one-line format: `deb [options] uri suite components`."""
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)", line)
        if match:
            signed = re.search(r"signed-by=(\S+)", match["options"] or "")
            found.append(Source(match["uri"].rstrip("/"), match["suite"], signed[1] if signed else None))
    return found


def parse_deb822(text: str) -> list[Source]:
    """The stanza format: `Types: deb`, `URIs: ...`, `Suites: ...`."""
    found = []
    for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = {key.lower(): value.split() for key, value in re.findall(r"(?m)^(\S+):((?:.*)(?:\n[ \t].*)*)", stanza)}
        if "deb" not in fields.get("types", []) or fields.get("enabled", ["yes"])[:1] == ["no"]:
            continue
        signed = fields.get("signed-by", [])
        keyring = signed[0] if len(signed) == 1 and signed[0].startswith("/") else None
        for uri in fields.get("uris", []):
            found += [Source(uri.rstrip("/"), suite, keyring) for suite in fields.get("suites", [])]
    return found


def mirrors(
    sources: tuple[Source, ...], codename: str, suite: str, read_text: Callable[[Path], str] = Path.read_text
) -> Mirrors | None:
    """The mirrors of a Debian host of release `codename`, moved to `suite`; None where the host names none."""
    usable = [resolved for source in sources if (resolved := _resolve(source, read_text))]

    def first(*suites: str) -> Source | None:
        return next((source for source in usable if source.suite in suites), None)

    main = first(codename, "stable", "testing", "unstable", "sid")
    if main is None:
        return None
    updates = first(f"{codename}-updates", "stable-updates")
    security = first(f"{codename}-security", f"{codename}/updates", "stable-security")
    return Mirrors(
        Source(main.uri, suite, main.keyring),
        updates and Source(updates.uri, f"{suite}-updates", updates.keyring),
        security and Source(security.uri, f"{suite}-security", security.keyring),
    )


def render(found: Mirrors) -> str:
    """The sources of a node, in stanza format."""
    sources = [source for source in (found.main, found.updates, found.security) if source]
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: main\n"
        f"Signed-By: {source.keyring or DEBIAN_KEYRING}\n"
        for source in sources
    )


def _resolve(source: Source, read_text: Callable[[Path], str]) -> Source | None:
    """Cloud images of Debian name a file of mirrors instead of one mirror: debootstrap needs the first one itself."""
    uri = source.uri
    if uri.startswith("mirror+file:"):
        path = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
        lines = [line.split("#")[0].split() for line in read_text(path).splitlines()]
        uri = next((words[0].rstrip("/") for words in lines if words), "")
    return Source(uri, source.suite, source.keyring) if re.match(r"(https?|ftp|file)://", uri) else None
