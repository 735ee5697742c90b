"""`muster schema` and `muster golden`: what is generated from the spec."""

from __future__ import annotations

import os

from infra import documents
from infra.commands import screen
from infra.home import Home


def schema() -> None:
    print(documents.schema(), end="")


def golden() -> None:
    for path in documents.write_all(Home.of(os.environ).repo):
        screen.say(f"wrote {path}")
