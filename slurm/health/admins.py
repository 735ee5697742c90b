"""The users who may log in to a node without a job: the set-up writes them, logins, epilog and checks read them."""

from __future__ import annotations

from pathlib import Path

ADMINS_FILE = "/etc/muster/admins"


def read_admins() -> list[str]:
    """Return the names of the admins; none where the set-up has not written them."""
    path = Path(ADMINS_FILE)
    return path.read_text(encoding="utf-8").split() if path.exists() else []
