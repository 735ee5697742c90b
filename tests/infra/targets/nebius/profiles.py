"""Profiles of Nebius's CLI."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.targets.nebius import client


def use_profile(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Let a file with this text be the profiles of Nebius's CLI, and the only login."""
    path = folder / "config.yaml"
    path.write_text(text)
    monkeypatch.setattr(client, "CLI_CONFIG", path)
    for name in (client.LOOPBACK, client.TOKEN, "NEBIUS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
