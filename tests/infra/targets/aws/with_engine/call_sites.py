"""Call sites: the kinds of calls that muster makes of AWS, and an error that is injected once at each of them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from infra.targets.aws.rehearse.errors.call_sites import name_site

_SITES = Path(__file__).with_name("call_sites.txt")


def read_sites() -> tuple[str, ...]:
    """Return the sites that are known for `up` and `teardown` of the g6 pair."""
    return tuple(_SITES.read_text().splitlines())


def choose_code(codes: Sequence[str], position: int, night: int) -> str:
    """Return the code for a site of the list; in as many nights as there are codes, it meets each of them once."""
    return codes[(position + night) % len(codes)]


@dataclass
class OneErrorPerSite:
    """Fails the first call of each kind, with another code every night. Given to `Moto.interfere`."""

    codes: Sequence[str]
    night: int
    sites: Sequence[str] = field(default_factory=read_sites)
    injected: dict[str, str] = field(default_factory=dict)
    """Code by site."""
    unlisted: list[str] = field(default_factory=list)
    """Sites that are not in the list, which has to be extended by them."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._positions = {site: position for position, site in enumerate(self.sites)}

    def __call__(self, service: str, action: str, params: dict[str, str]) -> str:
        site = name_site(service, action, params)
        with self._lock:
            if site in self.injected:
                return ""
            if site not in self._positions:
                self.unlisted.append(site)
                self._positions[site] = len(self._positions)
            self.injected[site] = choose_code(self.codes, self._positions[site], self.night)
            return self.injected[site]
