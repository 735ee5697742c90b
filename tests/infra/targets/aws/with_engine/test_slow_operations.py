"""A throttled call of Pulumi's plugin: the plugin repeats it in silence, and `up` prints how long that takes."""

from __future__ import annotations

import re
import time

import pytest

from infra.targets.aws.rehearse.moto_server import Fault
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.moto_server import Moto

THROTTLED, EACH_S = 6, 11.0


@pytest.mark.nightly
@pytest.mark.fault(25)
@pytest.mark.timeout(900)
def test_up_prints_how_long_a_resource_takes_whose_calls_are_throttled(make_stack: MakeStack, account: Moto) -> None:
    stack = make_stack("aws-g6-pair", name="slow")
    slow = Fault("CreateVpc", "RequestLimitExceeded", THROTTLED, before=lambda: time.sleep(EACH_S))
    account.faults.append(slow)
    # Nothing else has to be created.
    account.fail("CreateSubnet", "AccessDenied", times=99)
    code, output = stack.attempt("up", "--no-preflight")
    account.faults.clear()
    assert code
    text = " ".join(output.split())
    assert re.search(
        r"still creating \S+ \(aws:ec2/vpc:Vpc\) after 6\d s: the cloud is slow, or rejects calls", text
    ), output
    ended = re.search(r"created \S+ \(aws:ec2/vpc:Vpc\) after (\d+) s", text)
    assert ended, output
    assert int(ended[1]) >= THROTTLED * EACH_S
    stack.teardown()
