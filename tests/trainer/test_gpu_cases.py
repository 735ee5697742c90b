"""The optimisations that the GPU's benchmark can leave out."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pkgutil import resolve_name
from typing import Any

import pytest

from benchmarks.gpu_cases import SWITCHES


@pytest.mark.parametrize(
    ("target", "replacement"),
    [pytest.param(*pair, id=pair[0]) for targets in SWITCHES.values() for pair in targets.items()],
)
def test_a_replacement_is_called_like_what_it_replaces(target: str, replacement: Callable[..., Any]) -> None:
    assert len(signature(replacement).parameters) == len(signature(resolve_name(target)).parameters)
