"""The claim on a host: which cluster of whom it belongs to, written to the host when it is adopted. Pure functions."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from bootstrap.changes import RECORD
from infra.resources.error import ResourceError

PATH = f"{RECORD}/claim"
GIVEN_BACK = "if it was given back already, move /etc/muster away; or leave the host out"
"""Fix for a host with /etc/muster and without a claim: teardown leaves files there that somebody has changed."""


class ClaimError(ValueError):
    """A file that should be a claim is not one."""


@dataclass(frozen=True)
class Owner:
    """A cluster, and what shows whose it is: two operators may use the same names and paths."""

    cluster: str
    stack: str
    home: str
    """Label of the MUSTER_HOME."""
    machine: str
    """Digest of the operator's machine's id."""
    key: str
    """Fingerprint of the cluster's SSH key, which all who share the cluster's state have; empty if it is not known."""


@dataclass(frozen=True)
class Claim:
    """Who has adopted a host, and as which node."""

    cluster: str
    stack: str
    home: str
    home_path: str
    machine: str
    key: str
    node: str
    id: str
    """Differs for each adoption, so that a host that was installed again is recognized."""
    created: str
    """Time, ISO 8601 in UTC."""

    def render(self) -> str:
        """Return the content of the file."""
        return json.dumps(asdict(self)) + "\n"

    @property
    def owner(self) -> Owner:
        return Owner(self.cluster, self.stack, self.home, self.machine, self.key)

    def is_of(self, owner: Owner) -> bool:
        """Return whether a host belongs to a cluster: by its key, or, if the state is lost, by where it was created."""
        same_key = bool(owner.key) and self.key == owner.key
        same_place = (self.home, self.machine) == (owner.home, owner.machine)
        return (self.cluster, self.stack) == (owner.cluster, owner.stack) and (same_key or same_place)


def parse_claim(text: str) -> Claim | None:
    """Return the claim in a file; None if it is empty or missing. Raise ClaimError if it is something else."""
    if not text.strip():
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        return Claim(**{name: str(value) for name, value in fields.items()})
    except (ValueError, TypeError, AttributeError):
        raise ClaimError(f"{PATH} cannot be read") from None


def hash_key(public_key: str) -> str:
    """Return the fingerprint of a public key, as `ssh-keygen -l` prints it; empty if it is not one."""
    try:
        digest = sha256(b64decode(public_key.split()[1], validate=True)).digest()
    except (ValueError, IndexError):
        return ""
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


def check_claim(host: str, existing: Claim, new: Claim) -> None:
    """Raise ResourceError if a host belongs to another cluster, or is another node of this one."""
    where = f"hosts.machines.{host}"
    if not existing.is_of(new.owner):
        what = f"belongs to cluster {existing.cluster} (stack {existing.stack}, MUSTER_HOME {existing.home_path})"
        fix = f"run `muster teardown --stack {existing.stack}` there first, or leave the host out"
        raise ResourceError(where, what, fix)
    if existing.node != new.node:
        what = f"is node {existing.node} of this cluster and cannot become {new.node} while it runs"
        fix = "remove hosts only from the end of a group (in the natural order of their names), or tear down first"
        raise ResourceError(where, what, fix)
