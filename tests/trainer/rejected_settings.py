"""Assert that settings are rejected."""

from __future__ import annotations

import pytest

from trainer.config.errors import ConfigError
from trainer.config.load import load


def assert_rejected(preset: str, overrides: list[str], message: str) -> None:
    """Assert that these settings have a single problem, whose text starts with the message."""
    with pytest.raises(ConfigError) as caught:
        load(preset, overrides)
    assert len(caught.value.problems) == 1
    assert str(caught.value).startswith(message)
