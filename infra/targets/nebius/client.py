"""Calls to Nebius's API through its SDK; errors of the API become ResourceError."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import nebius.api.nebius.billing.v1alpha1
import nebius.api.nebius.capacity.v1
import nebius.api.nebius.compute.v1
import nebius.api.nebius.iam.v2
import nebius.api.nebius.vpc.v1  # noqa: F401  # imports register the messages by name
from grpc import StatusCode
from nebius.aio.cli_config import Config
from nebius.aio.service_error import RequestError
from nebius.base.error import SDKError
from nebius.base.options import INSECURE
from nebius.base.protos.dynamic import REGISTRY
from nebius.base.resolver import Constant
from nebius.sdk import SDK
from yaml import YAMLError

from infra.resources.error import ResourceError
from infra.targets.nebius.kinds import Kind
from infra.targets.nebius.refusals import CONNECTION_FIX, explain_error, is_code
from infra.targets.nebius.spec import LOGIN_FIX

TOKEN = "NEBIUS_IAM_TOKEN"  # noqa: S105  # the name of a variable
CLI_CONFIG = Path("~/.nebius/config.yaml")
LOOPBACK = "MUSTER_NEBIUS_LOOPBACK"
"""Port of a server on this machine that stands in for the API, for tests."""
USER_AGENT = "muster"
PAGE_SIZE = 200
CALL_TIMEOUT_S = 60.0
# Without a network, the SDK retries until the timeout. Only for questions: an operation that is given up may go on.
FIRST_CALL_TIMEOUT_S = 10.0
POLL_S = 1.0
STOPPED = "STOPPED"
# Without another call, a resource stays in them.
_FAILED_STATES: Mapping[str, str] = {
    "ERROR": "look at it in Nebius's console, delete it there, then run it again",
    STOPPED: "run it again: it starts the instance",
}
Message = dict[str, Any]
# The SDK logs each attempt with a traceback; the error of the last one has its own message here.
for _logger in ("nebius", "deprecation"):
    logging.getLogger(_logger).setLevel(logging.CRITICAL)


class Cloud:
    """The API, with the caller's credentials. Messages are dicts in protobuf's JSON form."""

    def __init__(self, sdk: SDK, where: str) -> None:
        self._sdk, self._where = sdk, where
        self._has_answered = False

    def get(self, kind: Kind, id_: str) -> Message | None:
        """Return a resource; None if it does not exist."""
        return self._find(kind, "Get", kind.request("Get"), {"id": id_})

    def get_by_name(self, kind: Kind, parent: str, name: str) -> Message | None:
        """Return a resource by its name; None if it does not exist."""
        try:
            return next(resource for resource in self.list(kind, parent) if resource["metadata"].get("name") == name)
        except StopIteration:
            return None

    def list(self, kind: Kind, parent: str) -> Iterator[Message]:
        """Yield all resources of a kind in a project, or the rules of a security group."""
        return self.list_all(kind.service, kind.request("List"), parent)

    def list_all(self, service: str, request: str, parent: str) -> Iterator[Message]:
        """Yield the items of all pages."""
        token = ""
        while True:
            page = self.call(service, "List", request, {"parentId": parent, "pageSize": PAGE_SIZE, "pageToken": token})
            yield from page.get("items", [])
            token = page.get("nextPageToken", "")
            if not token:
                return

    def create(self, kind: Kind, metadata: Message, spec: Message) -> str:
        """Create a resource, wait for the operation, and return its id."""
        return self._operate(kind, "Create", {"metadata": metadata, "spec": spec})

    def update(self, kind: Kind, metadata: Message, spec: Message) -> None:
        """Update a resource and wait for the operation."""
        self._operate(kind, "Update", {"metadata": metadata, "spec": spec})

    def start_if_stopped(self, kind: Kind, id_: str) -> None:
        """Start an instance that somebody, or a preemption, has stopped; other kinds are never stopped."""
        if kind.ready and read_state(self.get(kind, id_) or {}) == STOPPED:
            self._operate(kind, "Start", {"id": id_})

    def delete(self, kind: Kind, id_: str) -> None:
        """Delete a resource, if it exists, and wait for the operation."""
        try:
            self._operate(kind, "Delete", {"id": id_})
        except RequestError as error:
            if not is_code(error, StatusCode.NOT_FOUND):
                raise

    def wait_until_ready(self, kind: Kind, id_: str) -> Message:
        """Return a resource once it can be used; another run may have created it a moment ago."""
        deadline = time.monotonic() + kind.timeout_s
        while True:
            resource = self.get(kind, id_)
            if resource is None:
                raise ResourceError(self._where, f"{kind.name} {id_} has disappeared", "run it again")
            state = read_state(resource)
            if not kind.ready or state in kind.ready:
                return resource
            if state in _FAILED_STATES:
                what = f"{kind.name} {resource['metadata'].get('name', id_)} is in state {state}"
                raise ResourceError(self._where, what, _FAILED_STATES[state])
            if time.monotonic() > deadline:
                what = (
                    f"{kind.name} {resource['metadata'].get('name', id_)} is still {state} after {kind.timeout_s:.0f} s"
                )
                raise ResourceError(self._where, what, "run it again: it continues to wait")
            time.sleep(POLL_S)

    def call(self, service: str, method: str, request: str, fields: Mapping[str, Any]) -> Message:
        """Call a method that answers at once."""
        client = REGISTRY.client_class(service)(self._sdk)
        message = REGISTRY.message_class(request).from_json(json.dumps(fields))
        timeout_s = CALL_TIMEOUT_S if self._has_answered else FIRST_CALL_TIMEOUT_S
        answer = getattr(client, _snake(method))(message, timeout=timeout_s).wait()
        self._has_answered = True
        parsed: Message = json.loads(answer.to_json())
        return parsed

    def _find(self, kind: Kind, method: str, request: str, fields: Mapping[str, Any]) -> Message | None:
        try:
            return self.call(kind.service, method, request, fields)
        except RequestError as error:
            if is_code(error, StatusCode.NOT_FOUND):
                return None
            raise

    def _operate(self, kind: Kind, method: str, fields: Mapping[str, Any]) -> str:
        client = REGISTRY.client_class(kind.service)(self._sdk)
        message = REGISTRY.message_class(kind.request(method)).from_json(json.dumps(fields))
        operation = getattr(client, _snake(method))(message, timeout=CALL_TIMEOUT_S).wait()
        self._has_answered = True
        try:
            operation.sync_wait(interval=POLL_S, timeout=kind.timeout_s)
        except TimeoutError:
            what = f"{method.lower()} of {kind.name} has not ended after {kind.timeout_s:.0f} s"
            raise ResourceError(self._where, what, "run it again: it continues to wait") from None
        return str(operation.resource_id)


@contextmanager
def open_cloud(where: str) -> Iterator[Cloud]:
    """Connect for the block; errors of the API and of the login become ResourceError, whose property is `where`."""
    with ExitStack() as stack:
        try:
            sdk = _connect(where)
            stack.callback(sdk.sync_close)
            # Calls retry a login that does not work, or hide why it does not.
            sdk.get_token_sync(CALL_TIMEOUT_S)
            yield Cloud(sdk, where)
        except RequestError as error:
            raise explain_error(where, error) from None
        except TimeoutError as error:
            raise ResourceError(where, f"Nebius does not answer: {error}", CONNECTION_FIX) from None
        except (SDKError, OSError) as error:
            raise _explain_login(where, error) from None


def has_credentials() -> bool:
    """Return whether there is something to log in with."""
    return bool(os.environ.get(LOOPBACK) or os.environ.get(TOKEN)) or CLI_CONFIG.expanduser().exists()


def read_state(resource: Message) -> str:
    """Return the state of a resource; empty if its kind has none."""
    return str(resource.get("status", {}).get("state", ""))


def normalize_spec(kind: Kind, spec: Message) -> Message:
    """Return a spec as the API answers it: without values that are protobuf's defaults, and with whole numbers."""
    message = REGISTRY.message_class(f"{kind.package}.{kind.message}Spec").from_json(json.dumps(spec))
    normalized: Message = json.loads(message.to_json())
    return normalized


def _connect(where: str) -> SDK:
    if port := os.environ.get(LOOPBACK):
        return SDK(
            credentials="loopback",
            resolver=Constant(f"127.0.0.1:{int(port)}"),
            options=[(INSECURE, True)],
            user_agent_prefix=USER_AGENT,
        )
    if os.environ.get(TOKEN):
        return SDK(user_agent_prefix=USER_AGENT)
    if not has_credentials():
        raise ResourceError(where, f"no credentials for Nebius: {CLI_CONFIG} and {TOKEN} are missing", LOGIN_FIX)
    try:
        return SDK(config_reader=Config(config_file=CLI_CONFIG), user_agent_prefix=USER_AGENT)
    except (YAMLError, ValueError) as invalid:
        # A file that is no YAML, or a private key that is none.
        raise _explain_login(where, invalid) from None


def _explain_login(where: str, error: Exception) -> ResourceError:
    what = " ".join(str(error).split()) or type(error).__name__
    return ResourceError(where, f"the login to Nebius does not work: {what}", LOGIN_FIX)


def _snake(method: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in method).lstrip("_")
