"""The claim on a host: which cluster of whom it belongs to, written to the host when it is adopted. Pure functions."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from bootstrap.changes import RECORD
from infra.resources.error import ResourceError

PATH = f"{RECORD}/claim"


@dataclass(frozen=True)
class Claim:
    """Who has adopted a host, and as which node."""

    cluster: str
    stack: str
    home: str
    """Label of the MUSTER_HOME that adopted it."""
    home_path: str
    node: str
    id: str
    """Differs for each adoption, so that a host that was installed again is recognized."""
    created: str
    """Time, ISO 8601 in UTC."""

    def render(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self)) + "\n"

    def is_of(self, cluster: str, stack: str, home: str) -> bool:
        """Return whether a host belongs to this cluster of this MUSTER_HOME."""
        return (self.cluster, self.stack, self.home) == (cluster, stack, home)


def parse_claim(text: str) -> Claim | None:
    """Return the claim in a file; None if it is empty, missing or not readable."""
    try:
        fields: dict[str, Any] = json.loads(text)
        return Claim(**{name: str(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError):
        return None


def check_claim(host: str, existing: Claim, new: Claim) -> None:
    """Raise ResourceError if a host belongs to another cluster, or is another node of this one."""
    where = f"hosts.machines.{host}"
    if not existing.is_of(new.cluster, new.stack, new.home):
        what = f"belongs to cluster {existing.cluster} (stack {existing.stack}, MUSTER_HOME {existing.home_path})"
        fix = f"run `muster teardown --stack {existing.stack}` there first, or leave the host out"
        raise ResourceError(where, what, fix)
    if existing.node != new.node:
        what = f"is node {existing.node} of this cluster and cannot become {new.node} while it runs"
        fix = "remove hosts only from the end of a group (in the natural order of their names), or tear down first"
        raise ResourceError(where, what, fix)
