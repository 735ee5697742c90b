"""An error at the first call of each site in a run, and the record of what was called."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from infra.targets.aws.rehearse.errors.call_sites import NUMBER, name_site


@dataclass
class Injection:
    """Fails the first call of each site. Given to `Moto.interfere` for one run of a command."""

    choose: Callable[[str], str]
    """Returns the error code for a site, or an empty string if its calls succeed."""
    injected: dict[str, str] = field(default_factory=dict)
    """Code by site."""
    is_numbered: bool = False
    """Whether each call is a site of its own: the second call of a kind is `... #2`."""
    called: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    """Sites that were called again after their error: by a retry, or for another resource."""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def __call__(self, service: str, action: str, params: dict[str, str]) -> str:
        kind = name_site(service, action, params)
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
            site = f"{kind}{NUMBER}{count}" if self.is_numbered and count > 1 else kind
            self.repeated |= {failed for failed in self.injected if failed.partition(NUMBER)[0] == kind}
            if site in self.called:
                return ""
            self.called.add(site)
            if code := self.choose(site):
                self.injected[site] = code
            return code
