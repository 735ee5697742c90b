"""`muster env`: print shell exports with which plain `pulumi up -s STACK` works in the repository."""

from __future__ import annotations

import os

from infra.engine.environment import exports, prepare
from infra.engine.remote_state import check_store
from infra.home import Home


def shell_env() -> None:
    """Print the shell exports."""
    home = Home.of(os.environ)
    if home.remote:
        check_store(home)
    prepare(home)
    print(exports(os.environ, home))
