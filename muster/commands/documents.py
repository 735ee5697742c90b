"""`muster schema` and `muster golden`: what is generated from the spec."""

from __future__ import annotations

import os

from infra.home import Home
from muster import documents
from muster.commands import screen


def schema() -> None:
    print(documents.render_schema(), end="")


def golden() -> None:
    for path in documents.write_documents(Home.of(os.environ).repo):
        screen.say(f"wrote {path}")
