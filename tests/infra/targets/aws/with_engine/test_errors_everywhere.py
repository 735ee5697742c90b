"""An error at every call of `up` and `teardown`: each is named with a fix, `up` continues, `teardown` leaves nothing.

Every code of the table is injected somewhere, and each call site meets one code per night: another one every night, all
of them in as many nights as there are codes. That each code has its fix is shown in test_refusals.py, and that Slurm's
launcher handles each code at each of its calls in launcher/test_error_matrix.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from infra.targets.aws.launcher.error_codes import CODES
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.aws.rehearse.errors.call_sites import visible_code
from infra.targets.aws.rehearse.moto_server import Interference
from tests.infra.targets.aws.with_engine.call_sites import OneErrorPerSite
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack
from tests.infra.targets.aws.with_engine.conftest import MakeStack
from tests.moto_server import Moto

UP, TEARDOWN = ("up",), ("teardown", "--yes")
# `gone` is left out: for the engine it is no error but the answer that a resource does not exist.
ERRORS = [code for kind, codes in CODES.items() if kind != "gone" for code in codes]
# Each run creates or removes at least one more layer of resources; more runs mean that an error is permanent.
RUNS_AT_MOST = 60
# The number of the night chooses the code of each site; set it to repeat a night that failed.
NIGHT = "MUSTER_TEST_NIGHT"


@dataclass
class FailingAccount:
    """A stack whose commands meet errors of AWS."""

    stack: CloudStack
    moto: Moto

    def __post_init__(self) -> None:
        self.before = list_resources(self.stack.cloud)

    def run(self, command: Sequence[str], errors: Interference) -> tuple[int, str]:
        """Run a command of muster with these errors, and return its exit code and output."""
        self.moto.interfere = errors
        code, output = self.stack.attempt(*command)
        self.moto.interfere = None
        assert "Traceback" not in output
        return code, output

    def repeat(
        self, command: Sequence[str], errors: OneErrorPerSite, after_odd: Callable[[], None] | None = None
    ) -> int:
        """Repeat a command until it succeeds, and return the number of runs; each failure must be explained.

        `after_odd` is called after the first failure, the third, and so on.
        """
        output = ""
        for run in range(1, RUNS_AT_MOST + 1):
            earlier = len(errors.injected)
            code, output = self.run(command, errors)
            if code == 0:
                return run
            check_explained(output, [visible_code(*pair) for pair in list(errors.injected.items())[earlier:]])
            if after_odd and run % 2:
                after_odd()
        pytest.fail(f"`muster {command[0]}` still fails after {RUNS_AT_MOST} runs:\n{output}")

    def list_left(self) -> set[str]:
        """Return what the account has besides what it had before, whatever its tags."""
        return list_resources(self.stack.cloud) - self.before

    def check_nothing_left(self) -> None:
        """Assert that neither the receipt nor the account has anything of the cluster."""
        assert self.stack.receipt["left"] == 0
        assert self.list_left() == set()


def check_explained(output: str, codes: Sequence[str]) -> None:
    """Assert that a command that failed names one of these codes, and the command that continues."""
    assert any(re.search(rf"\b{re.escape(code)}\b", output) for code in codes), f"none of {codes} in:\n{output}"
    assert re.search(r"(muster|make) (up|teardown|check)", output), output


@pytest.fixture
def failing(make_stack: MakeStack, account: Moto) -> FailingAccount:
    return FailingAccount(make_stack("aws-g6-pair", name="errors"), account)


@pytest.mark.fault(23)
@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_an_error_at_every_call(failing: FailingAccount) -> None:
    """After a failed `up`, alternately `teardown` removes what there is, or the next `up` continues."""
    errors = OneErrorPerSite(ERRORS, int(os.environ.get(NIGHT) or datetime.now(UTC).toordinal()))
    print(f"night {errors.night % len(ERRORS)}; {NIGHT}={errors.night} repeats it")
    teardowns: list[int] = []

    def tear_down() -> None:
        if failing.list_left():
            teardowns.append(failing.repeat(TEARDOWN, errors))
            failing.check_nothing_left()

    ups = failing.repeat(UP, errors, after_odd=tear_down)
    failing.stack.unchanged()
    tear_down()
    codes = set(errors.injected.values())
    print(
        f"errors at {len(errors.injected)} of {len(errors.sites)} call sites with {len(codes)} of {len(ERRORS)} codes, "
        f"{len(errors.injected)} of {len(errors.sites) * len(ERRORS)} pairs of both: `up` {ups} times, "
        f"`teardown` {sum(teardowns)} times, nothing left {len(teardowns)} times"
    )
    assert errors.unlisted == [], "add these sites to call_sites.txt"
    assert codes == set(ERRORS)
