"""Read this machine's apt sources, so that the node image is built from the same mirrors."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


@dataclass(frozen=True)
class Source:
    """One suite of one apt repository."""

    uri: str
    suite: str
    keyring: str | None = None


@dataclass(frozen=True)
class Mirrors:
    """The sources of a Debian suite and, if the host has them too, of its updates and security updates."""

    main: Source
    updates: Source | None = None
    security: Source | None = None


def read_sources(directory: Path = Path("/etc/apt")) -> tuple[Source, ...]:
    """Return all sources that apt on this machine uses."""
    sources: list[Source] = []
    parts = directory / "sources.list.d"
    for path in (directory / "sources.list", *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))):
        if path.is_file():
            text = path.read_text(errors="replace")
            sources += parse_deb822(text) if path.suffix == ".sources" else parse_lines(text)
    return tuple(sources)


def parse_lines(text: str) -> list[Source]:
    """Return the sources in the one-line format: `deb [options] uri suite components`."""
    sources = []
    for line in text.splitlines():
        match = re.match(r"\s*deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(?P<uri>\S+)\s+(?P<suite>\S+)", line)
        if match:
            signed = re.search(r"signed-by=(\S+)", match["options"] or "")
            sources.append(Source(match["uri"].rstrip("/"), match["suite"], signed[1] if signed else None))
    return sources


def parse_deb822(text: str) -> list[Source]:
    """Return the sources in the stanza format: `Types: deb`, `URIs: ...`, `Suites: ...`."""
    sources = []
    for stanza in re.split(r"\n\s*\n", re.sub(r"(?m)^#.*\n?", "", text)):
        fields = {key.lower(): value.split() for key, value in re.findall(r"(?m)^(\S+):((?:.*)(?:\n[ \t].*)*)", stanza)}
        if "deb" not in fields.get("types", []) or fields.get("enabled", ["yes"])[:1] == ["no"]:
            continue
        signed = fields.get("signed-by", [])
        keyring = signed[0] if len(signed) == 1 and signed[0].startswith("/") else None
        for uri in fields.get("uris", []):
            sources += [Source(uri.rstrip("/"), suite, keyring) for suite in fields.get("suites", [])]
    return sources


def find_mirrors(
    sources: tuple[Source, ...], codename: str, suite: str, read_text: Callable[[Path], str] = Path.read_text
) -> Mirrors | None:
    """Return the mirrors of a Debian host of release `codename`, changed to `suite`; None if the host has none."""
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


def render_sources(mirrors: Mirrors) -> str:
    """Return the text of a node's apt sources, in stanza format."""
    sources = [source for source in (mirrors.main, mirrors.updates, mirrors.security) if source]
    return "\n".join(
        f"Types: deb\nURIs: {source.uri}\nSuites: {source.suite}\nComponents: main\n"
        f"Signed-By: {source.keyring or DEBIAN_KEYRING}\n"
        for source in sources
    )


def _resolve(source: Source, read_text: Callable[[Path], str]) -> Source | None:
    """Return the source with a mirror list replaced by its first mirror, or None if debootstrap cannot use it.

    Debian's cloud images name a file of mirrors (`mirror+file:`), which apt understands and debootstrap does not.
    """
    uri = source.uri
    if uri.startswith("mirror+file:"):
        path = Path("/" + uri.removeprefix("mirror+file:").lstrip("/"))
        lines = [line.split("#")[0].split() for line in read_text(path).splitlines()]
        uri = next((columns[0].rstrip("/") for columns in lines if columns), "")
    return Source(uri, source.suite, source.keyring) if re.match(r"(https?|ftp|file)://", uri) else None
