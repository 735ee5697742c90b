"""The marker `nightly_cases`: the cases of a parametrized test that run only by night.

    @pytest.mark.nightly_cases("fsdp", "hsdp-bf16")

By day, the other cases show the behaviour. The arguments are the ids that pytest prints between brackets.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

MARKER = "nightly_cases"


class NightlyCases:
    """A plugin that marks these cases `nightly`, and refuses ids that no case has."""

    def __init__(self) -> None:
        self._unknown: dict[str, set[str]] = {}

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Mark the test if its case runs by night."""
        cases = {case for marker in item.iter_markers(MARKER) for case in marker.args}
        if not cases:
            return
        path, _, case = item.nodeid.removesuffix("]").partition("[")
        if case in cases:
            item.add_marker(pytest.mark.nightly)
        self._unknown.setdefault(path, cases).discard(case)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Raise UsageError if the marker of a test names a case that does not exist."""
        if selects_cases(session.config.args):
            return
        if unknown := [f"{path}[{case}]" for path, cases in self._unknown.items() for case in sorted(cases)]:
            raise pytest.UsageError(f"{MARKER}: no such case: {', '.join(unknown)}")


def selects_cases(arguments: Iterable[str]) -> bool:
    """Return whether the arguments of pytest name tests, so that it does not collect all cases of a test."""
    return any("::" in argument for argument in arguments)
