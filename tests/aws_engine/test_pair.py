"""The g6 pair through its whole life: what a person sees, what AWS has, what is left."""

from __future__ import annotations

import pytest

from tests.aws_engine.cloud_stack import CloudStack
from tests.aws_engine.conftest import MakeStack


@pytest.fixture(scope="module")
def pair(make: MakeStack) -> CloudStack:
    stack = make("aws-g6-pair")
    with stack.counted("up"):
        said = stack.up()
    assert "ready" in said
    return stack


def test_up(pair: CloudStack) -> None:
    print(pair.calls)
