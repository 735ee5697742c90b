"""Data Lifecycle Manager, which moto lacks: it stores policies and returns them, but takes no snapshots."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

from moto.core.resource_tagging import TaggedResource
from moto.ec2.models import EC2Backend, ec2_backends

from infra.targets.aws.rehearse.moto_errors import Answer

SERVICE = "dlm"
_PATH = "/policies"
_JSON = [("Content-Type", "application/json")]


def apply() -> None:
    """Let the tagging service list policies."""
    EC2Backend.iter_tagged_resources = _iterate_tagged


def answer(account: str, region: str, request: str, body: bytes) -> Answer:
    """Answer a request, given as `METHOD /path`."""
    policies = _stored(ec2_backends[account][region])
    method, _, path = request.partition(" ")
    id_ = path.rstrip("/").removeprefix(_PATH).lstrip("/")
    if method == "POST":
        id_ = f"policy-{uuid.uuid4().hex[:17]}"
        policies[id_] = json.loads(body) | {"PolicyId": id_}
        return _render({"PolicyId": id_})
    if id_ not in policies:
        message = json.dumps({"message": f"{id_} does not exist"}).encode()
        return "404 Not Found", [*_JSON, ("x-amzn-ErrorType", "ResourceNotFoundException")], message
    if method == "DELETE":
        del policies[id_]
    elif method == "PATCH":
        policies[id_] |= json.loads(body)
    return _render({"Policy": policies[id_]} if method == "GET" else {})


def _stored(backend: EC2Backend) -> dict[str, Any]:
    """Return the policies of an account and region: moto resets its own records, and with them these."""
    policies: dict[str, Any] = backend.__dict__.setdefault("muster_lifecycle_policies", {})
    return policies


def _iterate_tagged(self: EC2Backend) -> Iterator[TaggedResource]:
    yield from _iterate_ec2(self)
    for id_, policy in _stored(self).items():
        arn = f"arn:aws:{SERVICE}:{self.region_name}:{self.account_id}:policy/{id_}"
        yield TaggedResource(arn, policy.get("Tags", {}), f"{SERVICE}:policy")


_iterate_ec2 = EC2Backend.iter_tagged_resources


def _render(content: dict[str, Any]) -> Answer:
    return "200 OK", list(_JSON), json.dumps(content).encode()
