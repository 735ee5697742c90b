"""Capture the resources of the AWS program with Pulumi's mocks: properties, options and secrets of each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pulumi
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockCallArgs, MockMonitor, MockResourceArgs, Mocks
from pulumi.runtime.proto.source_pb2 import StackTrace

from cluster.spec import ClusterSpec
from infra.guard import ChangeGuard
from infra.resources.secrets import ClusterSecrets
from infra.targets.aws.build import bundle
from infra.targets.aws.spec import region_of
from infra.targets.registry import get_target as target
from infra.targets.registry import plan_of as plan
from infra.targets.registry import read_spec as read
from infra.targets.target import Context

ROOT = Path(__file__).resolve().parents[5]
STACKS = sorted(path.name.split(".")[1] for path in (ROOT / "stacks").glob("Pulumi.aws-*.yaml"))
ACCOUNT = "123456789012"
SECRETS = {
    "ssh_private_key": "PRIVATE-SSH-KEY",
    "slurm_key": "U0xVUk0tS0VZ",
    "db_password": "DATABASE-PASSWORD",
    "host": "PRIVATE-HOST-KEY",
}


@dataclass(frozen=True)
class CapturedResource:
    """A resource as the program registered it."""

    type: str
    name: str
    parent: str
    """Logical name of the component it belongs to."""
    props: dict[str, Any]
    """As the engine receives them, with secrets unwrapped."""
    secrets: frozenset[str]
    """Names of the secret properties."""
    options: dict[str, Any]
    provider: str
    custom: bool

    @property
    def label(self) -> str:
        return f"{self.type} {self.name}"


@cache
def example(stack: str) -> tuple[CapturedResource, ...]:
    """Return the resources of one of the repository's stacks."""
    return capture(read(ROOT / "stacks" / f"Pulumi.{stack}.yaml"), stack)


def capture(spec: ClusterSpec, stack: str, *, preview: bool = False) -> tuple[CapturedResource, ...]:
    """Run the program with mocks and return its resources, sorted."""
    monitor = _Recorder(_Mocks(spec))
    pulumi.runtime.set_mocks(monitor.mocks, project="muster", stack=stack, preview=preview, monitor=monitor)

    @pulumi.runtime.test
    def program() -> pulumi.Output[Any]:
        guard = ChangeGuard("guard", spec=spec.model_dump_json(), stack=stack)
        secrets = ClusterSecrets("secrets", cluster=spec.name, opts=pulumi.ResourceOptions(depends_on=[guard]))
        built = target("aws").build(plan(spec), Context(stack, guard, spec, secrets))
        return pulumi.Output.all(built.inventory, built.addresses, built.start())

    with (
        TemporaryDirectory() as home,
        patch.dict(os.environ, _environment(home)),
        _only_cluster_files(home),
        _no_traces(),
    ):
        program()
    return tuple(sorted(monitor.captured, key=lambda resource: (resource.type, resource.parent, resource.name)))


def of_type(resources: tuple[CapturedResource, ...], *types: str) -> list[CapturedResource]:
    return [resource for resource in resources if resource.type in types]


def named(resources: tuple[CapturedResource, ...], type_: str, name: str) -> CapturedResource:
    return next(resource for resource in resources if (resource.type, resource.name) == (type_, name))


def _environment(home: str) -> dict[str, str]:
    cleared = {name: "" for name in os.environ if name.startswith("AWS_")}
    return cleared | {"MUSTER_HOME": home, "MUSTER_CACHE": home}


@contextmanager
def _only_cluster_files(home: str) -> Iterator[None]:
    """Pack neither wheels nor code into the bundle: no test uses them."""
    with (
        patch.object(bundle, "fetch_wheels", lambda *_: Path(home)),
        patch("bootstrap.bundle._list_files", lambda *_: ()),
    ):
        yield


def _no_traces() -> Any:
    """Pulumi records where each resource is created; under pytest the call stack is deep, and no test reads it."""
    return patch("pulumi.runtime.resource._get_stack_trace", StackTrace)


class _Recorder(MockMonitor):
    def __init__(self, mocks: Mocks) -> None:
        super().__init__(mocks)
        self.captured: list[CapturedResource] = []

    def RegisterResource(self, request: Any) -> Any:  # the engine's own name
        answer = super().RegisterResource(request)
        if request.type != "pulumi:pulumi:Stack":
            self.captured.append(_capture_request(request))
        return answer


def _capture_request(request: Any) -> CapturedResource:
    raw = rpc.deserialize_properties(request.object)
    secret = frozenset(key for key, value in raw.items() if rpc.is_rpc_secret(value))
    options = {
        "protect": request.protect,
        "retainOnDelete": request.retainOnDelete,
        "ignoreChanges": list(request.ignoreChanges),
        "deleteBeforeReplace": request.deleteBeforeReplace,
        "additionalSecretOutputs": list(request.additionalSecretOutputs),
        "dependencies": sorted(urn.split("::", 2)[2] for urn in request.dependencies),
    }
    return CapturedResource(
        type=request.type,
        name=request.name,
        parent=request.parent.rpartition("::")[2],
        props={key: _unwrap(value) for key, value in raw.items() if key != "__provider"},
        secrets=secret,
        options=options,
        provider=request.provider,
        custom=request.custom,
    )


def _unwrap(value: Any) -> Any:
    if rpc.is_rpc_secret(value):
        return _unwrap(rpc.unwrap_rpc_secret(value))
    if isinstance(value, dict):
        return {key: _unwrap(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unwrap(item) for item in value]
    if isinstance(value, pulumi.FileAsset):
        return f"file {Path(value.path).name}"
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


class _Mocks(Mocks):
    """Mocks whose ids contain type and name, so that references in golden copies are readable."""

    def __init__(self, spec: ClusterSpec) -> None:
        self.spec = spec

    def call(self, args: MockCallArgs) -> Any:
        raise AssertionError(
            f"{args.token}: the program calls a function, whose result may differ between preview and up"
        )

    def new_resource(self, args: MockResourceArgs) -> tuple[str, dict[str, Any]]:
        kind = args.typ.rpartition(":")[2]
        inputs = {key: _unwrap(value) for key, value in args.inputs.items() if key != "__provider"}
        id_ = inputs.get("bucket", "") if kind == "Bucket" else f"{kind}/{args.name}"
        return id_, inputs | self._outputs(kind, args.name, inputs)

    def _outputs(self, kind: str, name: str, inputs: dict[str, Any]) -> dict[str, Any]:
        common = {"arn": f"arn:aws:{kind.lower()}:{name}", "name": inputs.get("name", name)}
        by_kind: dict[str, dict[str, Any]] = {
            "AwsResolved": {
                "account": ACCOUNT,
                "partition": "aws",
                "images": {image: f"ami-{image}" for image in inputs.get("parameters", {})},
                "zone": "us-east-1d" if inputs.get("instance_types") else "",
                "subnet_zones": dict.fromkeys(inputs.get("subnet_ids", []), f"{self._region}a"),
                "vpc_cidr": "10.9.0.0/16",
                "filesystems": {
                    id_: {"kind": "efs", "host": f"{id_}.efs", "export": "/"}
                    for id_ in inputs.get("filesystem_ids", [])
                },
            },
            "AwsHostKeys": {
                "private": {name: f"{SECRETS['host']}-{name}" for name in inputs.get("names", [])},
                "public": {name: f"ssh-ed25519 PUBLIC-{name}" for name in inputs.get("names", [])},
            },
            "ClusterSecrets": {key: SECRETS[key] for key in ("ssh_private_key", "slurm_key", "db_password")}
            | {"ssh_public_key": "ssh-ed25519 PUBLIC"},
            "AwsReadyGate": {"ready": {"nodes": []}},
            "AwsReported": {"applied": "2026-01-02T03:04:05Z", "pending": []},
            "Nodes": {"names": [], "missing": [], "held": False},
            "LustreFileSystem": {"dnsName": f"{name}.fsx", "mountName": "fsx"},
            "FileSystem": {"dnsName": f"{name}.efs"},
            "NetworkInterface": {"privateIp": {"controller": "10.0.0.10", "login": "10.0.0.11"}.get(name, "10.0.0.9")},
            "LaunchTemplate": {"latestVersion": 1},
            "Zone": {"zoneId": "Z123"},
            "Key": {"keyId": "key-id", "arn": f"arn:aws:kms:{self._region}:{ACCOUNT}:key/own"},
            "Bucket": {"arn": f"arn:aws:s3:::{inputs.get('bucket')}"},
        }
        return common | by_kind.get(kind, {})

    @property
    def _region(self) -> str:
        return region_of(self.spec)
