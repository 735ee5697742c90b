"""Resources that the test plugin created only in part: they stay in Pulumi's state, and an update completes them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from pulumi.runtime.proto import provider_pb2 as pb
from pulumi.runtime.proto import provider_pb2_grpc as pb_grpc
from pulumi.runtime.proto import status_pb2

from infra.targets.aws.rehearse import moto_gaps
from infra.targets.aws.rehearse.plugin.kind import Props
from infra.targets.aws.rehearse.plugin.serve import Provider, to_message, to_properties
from tests.moto_server import REGION, Moto

PROFILE = "urn:pulumi:s::muster::aws:iam/instanceProfile:InstanceProfile::login"
INPUTS: Props = {"name": "full-login", "role": "full-login", "tags": {"a": "b"}}
LOG_GROUP = "urn:pulumi:s::muster::aws:cloudwatch/logGroup:LogGroup::flow-logs"
LOG_INPUTS: Props = {"name": "flow-logs", "kmsKeyId": "arn:aws:kms:us-east-1:123456789012:key/1", "retentionInDays": 30}


@pytest.fixture
def account(aws: Moto) -> Moto:
    return aws


@pytest.fixture
def plugin(account: Moto) -> Iterator[Any]:
    """Yield the protocol's client of the plugin, in an account that has the role."""
    moto_gaps.apply()
    account.client("iam").create_role(RoleName=INPUTS["role"], AssumeRolePolicyDocument="{}")
    server = grpc.server(futures.ThreadPoolExecutor(1))
    pb_grpc.add_ResourceProviderServicer_to_server(Provider(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = pb_grpc.ResourceProviderStub(channel)
        stub.Configure(pb.ConfigureRequest(args=to_message({"region": REGION})))
        yield stub
    server.stop(None)


def create_in_part(plugin: Any, urn: str = PROFILE, inputs: Props = INPUTS) -> pb.ErrorResourceInitFailed:
    """Create a resource that must fail, and return what Pulumi stores of it."""
    with pytest.raises(grpc.RpcError) as error:
        plugin.Create(pb.CreateRequest(urn=urn, properties=to_message(inputs)))
    # grpc.RpcError does not declare the methods that every error of a call has.
    details = dict(error.value.trailing_metadata())["grpc-status-details-bin"]
    failure = pb.ErrorResourceInitFailed()
    assert status_pb2.Status.FromString(details).details[0].Unpack(failure)
    return failure


def list_roles(account: Moto) -> list[list[str]]:
    """Return the names of the roles of each profile in the account."""
    profiles = account.client("iam").list_instance_profiles()["InstanceProfiles"]
    return [[role["RoleName"] for role in profile["Roles"]] for profile in profiles]


def diff(plugin: Any, olds: Any) -> Any:
    inputs = to_message(INPUTS)
    return plugin.Diff(pb.DiffRequest(id=INPUTS["name"], urn=PROFILE, olds=olds, news=inputs, old_inputs=inputs))


def test_a_profile_without_its_role_stays_in_the_state_and_is_completed(plugin: Any, account: Moto) -> None:
    account.fail("AddRoleToInstanceProfile", "AccessDenied")
    failure = create_in_part(plugin)
    assert failure.id == "full-login"
    assert "login: An error occurred (AccessDenied) when calling the AddRoleToInstanceProfile" in failure.reasons[0]
    assert list_roles(account) == [[]]
    # `up` reads every resource before it compares them.
    inputs = to_message(INPUTS)
    read = plugin.Read(pb.ReadRequest(id=failure.id, urn=PROFILE, properties=failure.properties, inputs=inputs))
    difference = diff(plugin, read.properties)
    assert (difference.changes, list(difference.replaces)) == (pb.DiffResponse.DIFF_SOME, [])
    before = len(account.calls)
    request = pb.UpdateRequest(id=failure.id, urn=PROFILE, olds=read.properties, news=inputs, old_inputs=inputs)
    updated = plugin.Update(request)
    assert [call.action for call in account.calls[before:]] == ["AddRoleToInstanceProfile"]
    assert list_roles(account) == [["full-login"]]
    assert to_properties(updated.properties)["arn"].endswith("instance-profile/full-login")
    assert diff(plugin, updated.properties).changes == pb.DiffResponse.DIFF_NONE


def test_a_log_group_without_its_retention_is_read_and_completed(plugin: Any, account: Moto) -> None:
    account.fail("PutRetentionPolicy", "AccessDenied")
    failure, inputs = create_in_part(plugin, LOG_GROUP, LOG_INPUTS), to_message(LOG_INPUTS)
    read = plugin.Read(pb.ReadRequest(id=failure.id, urn=LOG_GROUP, properties=failure.properties, inputs=inputs))
    assert to_properties(read.inputs)["retentionInDays"] == 0
    request = pb.UpdateRequest(id=failure.id, urn=LOG_GROUP, olds=read.properties, news=inputs, old_inputs=read.inputs)
    updated = to_properties(plugin.Update(request).properties)
    (group,) = account.client("logs").describe_log_groups()["logGroups"]
    assert (group["retentionInDays"], group["arn"].removesuffix(":*")) == (30, updated["arn"])


def test_an_error_while_it_is_completed_leaves_it_as_it_was(plugin: Any, account: Moto) -> None:
    account.fail("AddRoleToInstanceProfile", "AccessDenied", times=2)
    failure, inputs = create_in_part(plugin), to_message(INPUTS)
    request = pb.UpdateRequest(id=failure.id, urn=PROFILE, olds=failure.properties, news=inputs, old_inputs=inputs)
    with pytest.raises(grpc.RpcError, match="AccessDenied"):
        plugin.Update(request)
    plugin.Update(request)
    assert list_roles(account) == [["full-login"]]


@pytest.mark.parametrize("refused", ["RemoveRoleFromInstanceProfile", "DeleteInstanceProfile"])
def test_a_profile_without_its_role_is_deleted_after_an_error(plugin: Any, account: Moto, refused: str) -> None:
    account.fail("AddRoleToInstanceProfile", "AccessDenied")
    failure = create_in_part(plugin)
    request = pb.DeleteRequest(id=failure.id, urn=PROFILE, properties=failure.properties)
    account.fail(refused, "AccessDenied")
    with pytest.raises(grpc.RpcError, match="AccessDenied"):
        plugin.Delete(request)
    plugin.Delete(request)
    assert list_roles(account) == []
