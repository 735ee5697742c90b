"""Steps of a provider that are repeated until each of their calls has met every error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as pb_grpc

from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.errors.coverage import Coverage, is_retryable
from infra.targets.aws.rehearse.errors.operation_runs import hasten
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.repeating_provider import RepeatingProvider, serve_provider
from infra.targets.aws.rehearse.errors.share import ALL_CODES, Share
from infra.targets.aws.rehearse.errors.step_commands import is_step_open
from infra.targets.aws.rehearse.errors.step_errors import StepErrors
from infra.targets.aws.rehearse.plugin.kind import Props
from infra.targets.aws.rehearse.plugin.serve import Provider, to_message
from tests.moto_server import REGION, Moto

URN = "urn:pulumi:s::muster::aws:iam/instanceProfile:InstanceProfile::login"
INPUTS: Props = {"name": "login", "role": "login", "tags": {"a": "b"}}
CREATE, ADD = "iam CreateInstanceProfile", "iam AddRoleToInstanceProfile"
REMOVE, DELETE = "iam RemoveRoleFromInstanceProfile", "iam DeleteInstanceProfile"


@dataclass
class Stage:
    """A provider whose steps meet errors, and what they have covered."""

    coverage: Coverage
    errors: StepErrors
    account: Moto
    stub: Any = None

    def create(self, *, preview: bool = False) -> Any:
        return self.stub.Create(pb.CreateRequest(urn=URN, properties=to_message(INPUTS), preview=preview))

    def list_roles(self) -> list[list[str]]:
        profiles = self.account.client("iam").list_instance_profiles()["InstanceProfiles"]
        return [[role["RoleName"] for role in profile["Roles"]] for profile in profiles]

    def list_missing(self) -> list[Pair]:
        """Return the pairs of all listed sites that were not covered as they should be."""
        pairs = (
            Pair(name, site, code)
            for name, sites in self.coverage.sites.items()
            for site in sites
            for code in ALL_CODES
        )
        return [
            pair
            for pair in pairs
            if self.coverage.pending.get(pair) != ("retried" if is_retryable(pair.site, pair.code) else "explained")
        ]


@pytest.fixture
def stage(aws: Moto) -> Iterator[Stage]:
    moto_gaps.apply()
    aws.client("iam").create_role(RoleName="login", AssumeRolePolicyDocument="{}")
    coverage = Coverage({"up": (CREATE, ADD), "teardown": (REMOVE, DELETE)})
    errors = StepErrors(coverage, Share(ALL_CODES))
    errors.begin("up")
    with (
        hasten(aws),
        serve_provider(RepeatingProvider(Provider(), errors)) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        stub = pb_grpc.ResourceProviderStub(channel)
        stub.Configure(pb.ConfigureRequest(args=to_message({"region": REGION, "maxRetries": "3"})))
        aws.interfere = errors
        yield Stage(coverage, errors, aws, stub)


def test_each_call_meets_every_code_before_a_resource_is_created_once_and_deleted(stage: Stage) -> None:
    created = stage.create()
    assert stage.list_roles() == [["login"]]
    stage.errors.begin("teardown")
    stage.stub.Delete(pb.DeleteRequest(id=created.id, urn=URN, properties=created.properties))
    assert stage.list_roles() == []
    assert stage.list_missing() == []
    assert stage.coverage.problems == []


def test_an_error_that_was_not_injected_reaches_the_engine(stage: Stage) -> None:
    stage.account.client("iam").delete_role(RoleName="login")
    stage.account.interfere = None
    with pytest.raises(grpc.RpcError, match="NoSuchEntity"):
        stage.create()


def test_a_preview_meets_no_error(stage: Stage) -> None:
    stage.create(preview=True)
    assert stage.coverage.tried == set()
    assert stage.list_roles() == []


def test_calls_of_others_and_calls_that_are_not_listed_meet_no_error(stage: Stage) -> None:
    assert stage.list_roles() == []
    stage.errors.begin("resize")
    stage.create()
    assert stage.coverage.tried == set()
    assert stage.list_roles() == [["login"]]


@pytest.fixture
def errors() -> StepErrors:
    errors = StepErrors(Coverage({"up": (CREATE,)}), Share(("SlowDown", "AccessDenied")))
    errors.begin("up")
    return errors


def meet(errors: StepErrors, failure: str, calls: int) -> tuple[list[str], dict[Pair, str], list[str]]:
    """Make calls in an attempt that ends with a failure; return their errors, the outcomes and the problems."""
    with errors.attempt() as attempt:
        codes = [errors("iam", "CreateInstanceProfile", {}) for _ in range(calls)]
    errors.judge(attempt, failure)
    coverage = errors._coverage
    return codes, dict(coverage.pending), coverage.problems


def test_a_throttled_call_that_is_not_repeated_is_a_problem(errors: StepErrors) -> None:
    codes, outcomes, problems = meet(errors, "login: An error occurred (SlowDown) when calling the X operation", 1)
    assert (codes, outcomes) == (["SlowDown"], {})
    assert "iam CreateInstanceProfile: SlowDown: not repeated" in problems[0]


@pytest.mark.parametrize("failure", ["it failed", "login: AccessDenied"])
def test_a_failure_without_the_code_or_a_fix_is_a_problem(errors: StepErrors, failure: str) -> None:
    codes, outcomes, problems = meet(errors, failure, 2)
    assert codes == ["SlowDown", "AccessDenied"]
    assert list(outcomes) == [Pair("up", CREATE, "SlowDown")]
    assert "AccessDenied: the step failed without naming it and a fix" in problems[0]


def test_a_step_that_goes_on_after_an_error_has_accepted_it(errors: StepErrors) -> None:
    _, outcomes, problems = meet(errors, "", 2)
    assert outcomes == {Pair("up", CREATE, "SlowDown"): "retried", Pair("up", CREATE, "AccessDenied"): "accepted"}
    assert problems == []


def test_an_error_after_which_something_else_was_tried_is_accepted_if_the_last_one_is_named() -> None:
    """The launcher tries one launch option after the other."""
    codes = ("SpotMaxPriceTooLow", "VcpuLimitExceeded")
    errors = StepErrors(Coverage({"up": (CREATE,)}), Share(codes))
    errors.begin("up")
    met, outcomes, problems = meet(errors, "An error occurred (VcpuLimitExceeded) when calling the X operation", 2)
    assert (met, problems) == (list(codes), [])
    assert outcomes == {Pair("up", CREATE, codes[0]): "accepted", Pair("up", CREATE, codes[1]): "explained"}


def test_calls_that_are_also_made_outside_of_steps_do_not_need_another_rehearsal_of_steps() -> None:
    """The search for leftovers lists networks, and nothing of it creates one."""
    share, search = Share(("SlowDown",)), "ec2 DescribeVpcs"
    assert is_step_open(Coverage({"up": ("ec2 CreateVpc", search)}), share)
    assert not is_step_open(Coverage({"up": (search,)}), share)
    assert not is_step_open(Coverage({"check": ("ec2 CreateVpc",)}), share)


def test_a_step_that_goes_on_after_errors_meets_all_of_them() -> None:
    """The launcher tries its next option after a shortage, so that one attempt meets several errors."""
    site, options = "ec2 RunInstances", 4
    coverage = Coverage({"resize": (site,)})
    errors = StepErrors(coverage, Share(ALL_CODES))
    errors.begin("resize")
    failure = "begins"
    while failure:
        with errors.attempt() as attempt:
            for _ in range(options):
                while (code := errors("ec2", "RunInstances", {})) and is_retryable(site, code):
                    pass
                if not code:
                    break
        failure = f"({code}) Fix: wait" if code else ""
        errors.judge(attempt, failure)
    assert coverage.problems == []
    assert coverage.list_open("resize", ALL_CODES) == []
