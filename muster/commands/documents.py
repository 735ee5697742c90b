"""`muster schema` and `muster golden`: print or write the documents that are generated from the spec."""

from __future__ import annotations

import os

from infra.home import Home
from muster import documents
from muster.commands import screen


def schema() -> None:
    """Print the JSON schema of a cluster."""
    print(documents.render_schema(), end="")


def golden() -> None:
    """Write the generated documents that are out of date."""
    for path in documents.write_documents(Home.of(os.environ).repo):
        screen.say(f"wrote {path}")
