"""Calls to Azure's Resource Manager; errors become ResourceError."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.policies import RequestIdPolicy, UserAgentPolicy
from azure.core.rest import HttpRequest
from azure.identity import AzureCliCredential, ChainedTokenCredential, EnvironmentCredential
from azure.mgmt.core import ARMPipelineClient
from azure.mgmt.core.policies import ARMAutoResourceProviderRegistrationPolicy, ARMChallengeAuthenticationPolicy
from azure.mgmt.core.polling.arm_polling import ARMPolling

from bootstrap.progress import announce
from infra.resources.error import ResourceError
from infra.targets.azure.kinds import Kind
from infra.targets.azure.refusals import TRANSIENT, explain_error, list_codes
from infra.targets.azure.retries import Retries
from infra.targets.azure.spec import LOGIN_FIX

ENDPOINT = "https://management.azure.com"
LOOPBACK = "MUSTER_AZURE_LOOPBACK"
"""Port of a server on this machine that stands in for Azure, for tests."""
USER_AGENT = "muster"
POLL_S, LOOPBACK_POLL_S = 5.0, 0.1
"""Between two questions about an operation, if Azure does not say how long to wait; of a server on this machine."""
BUSY_PAUSE_S = 5.0
BUSY_NOTICE_S = 60.0
"""Between two messages that an operation waits for another one."""
CALL_TIMEOUT_S = 60.0
# The first start of `az` on a slow disk takes longer than the library's 10 s.
AZ_TIMEOUT_S = 60
_NOT_FOUND = 404
_ATTEMPTS, _ADVICE = "Attempted credentials:", ("To mitigate this issue", "Visit https://")
_VARIABLES = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")
_CERTIFICATE = "AZURE_CLIENT_CERTIFICATE_PATH"
Message = dict[str, Any]
# The library logs a login that fails; the error has its own message here.
logging.getLogger("azure").setLevel(logging.CRITICAL)


class Cloud:
    """The API, with the caller's credentials. Bodies are JSON."""

    def __init__(self, client: ARMPipelineClient[Any, Any], where: str) -> None:
        self._client, self._where = client, where

    def get(self, path: str, api: str, **parameters: str) -> Message | None:
        """Return what is at a path; None if it does not exist."""
        try:
            return self.call("GET", path, api, parameters=parameters)
        except HttpResponseError as error:
            if error.status_code == _NOT_FOUND:
                return None
            raise

    def list(self, path: str, api: str, **parameters: str) -> Iterator[Message]:
        """Yield the items of all pages; nothing if the path does not exist."""
        page = self.get(path, api, **parameters)
        while page is not None:
            yield from page.get("value", [])
            following = page.get("nextLink")
            page = self._send("GET", following, None).json() if following else None

    def call(
        self, method: str, path: str, api: str, body: Message | None = None, parameters: dict[str, str] | None = None
    ) -> Message:
        """Call a method that answers at once."""
        response = self._send(method, path, body, {"api-version": api, **(parameters or {})})
        answer: Message = response.json() if response.content else {}
        return answer

    def put(self, kind: Kind, id_: str, body: Message) -> Message:
        """Create or update a resource, wait for the operation, and return the resource."""
        return self.operate("PUT", id_, kind.api, kind.timeout_s, body)

    def delete(self, kind: Kind, id_: str) -> None:
        """Delete a resource, if it exists, and wait for the operation; raise InUseError if something else uses it."""
        try:
            self.operate("DELETE", id_, kind.api, kind.timeout_s)
        except ClientAuthenticationError:
            raise
        except HttpResponseError as error:
            if error.status_code != _NOT_FOUND:
                raise _explain(self._where, error, deleting=True) from None

    def operate(self, method: str, path: str, api: str, timeout_s: float, body: Message | None = None) -> Message:
        """Start an operation, wait until it has ended, and return its result.

        While another operation changes the same resource, Azure refuses: that is waited for, too.
        """
        began = time.monotonic()
        deadline, next_notice = began + timeout_s, began
        while True:
            try:
                return self._operate(method, path, api, deadline, body)
            except HttpResponseError as error:
                transient = [code for code in list_codes(read_error(error)) if code in TRANSIENT]
                now = time.monotonic()
                if not transient or now + BUSY_PAUSE_S > deadline:
                    raise
            if now >= next_notice:
                next_notice = now + BUSY_NOTICE_S
                name = path.rpartition("/")[2]
                wait = f"{now - began:.0f} s; gives up after {timeout_s:.0f} s"
                announce(f"Azure is busy with {name} ({transient[0]}): {method} has waited {wait}")
            time.sleep(BUSY_PAUSE_S)

    def _operate(self, method: str, path: str, api: str, deadline: float, body: Message | None) -> Message:
        initial = self._run(method, path, body, {"api-version": api})
        # The result of an action is where `Location` says.
        options = {"final-state-via": "location"} if method == "POST" else None
        pause = LOOPBACK_POLL_S if os.environ.get(LOOPBACK) else POLL_S
        polling = _PollingUntil(deadline, pause, lro_options=options)
        polling.initialize(self._client, initial, _read_result)
        try:
            if not polling.finished():
                polling.run()
        except _DeadlineError:
            what = f"{method} of {path} has not ended in time"
            raise ResourceError(self._where, what, "run it again: it continues to wait") from None
        result: Message = polling.resource() or {}
        return result

    def _send(self, method: str, path: str, body: Message | None, parameters: dict[str, str] | None = None) -> Any:
        return self._run(method, path, body, parameters).http_response

    def _run(self, method: str, path: str, body: Message | None, parameters: dict[str, str] | None) -> Any:
        """Return the answer in the form that pollers start from; raise HttpResponseError for errors."""
        content = None if body is None else restore_integers(body)
        request = HttpRequest(method, self._client.format_url(path), params=parameters, json=content)
        answer = self._client.send_request(request, _return_pipeline_response=True)
        answer.http_response.raise_for_status()
        return answer


class _DeadlineError(Exception):
    """An operation has not ended in time."""


class _PollingUntil(ARMPolling):  # type: ignore[misc]  # the library is Any to the checker
    """Asks about an operation until a deadline. The library's poller would ask on in a thread, which nobody ends."""

    def __init__(self, deadline: float, pause: float, **options: Any) -> None:
        super().__init__(pause, **options)
        self._deadline = deadline

    def _delay(self) -> None:
        if time.monotonic() + self._extract_delay() > self._deadline:
            raise _DeadlineError
        super()._delay()


def restore_integers(value: Any) -> Any:
    """Return a body with whole numbers as such: Pulumi passes every number as a float, which Azure refuses."""
    if isinstance(value, dict):
        return {key: restore_integers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [restore_integers(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@contextmanager
def open_cloud(where: str) -> Iterator[Cloud]:
    """Connect for the block; errors of the API become ResourceError, whose property is `where`."""
    try:
        yield Cloud(_connect(os.environ.get(LOOPBACK, "")), where)
    except ClientAuthenticationError as error:
        text = explain_login(str(error))
        raise ResourceError(where, f"the login to Azure failed: {text}", choose_login_fix(text, os.environ)) from None
    except HttpResponseError as error:
        raise _explain(where, error) from None
    except AzureError as error:
        fix = f"check the connection to {ENDPOINT}, then run it again"
        raise ResourceError(where, f"Azure does not answer: {_first_line(error)}", fix) from None


def explain_login(text: str) -> str:
    """Return why each way to log in failed; the first line of a text that does not list them."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if _ATTEMPTS not in lines:
        return lines[0] if lines else "no reason given"
    attempts = lines[lines.index(_ATTEMPTS) + 1 :]
    return "; ".join(line.rstrip(".") for line in attempts if not line.startswith(_ADVICE))


def choose_login_fix(text: str, environment: Mapping[str, str]) -> str:
    """Return the fix of a login that failed, by its error and the variables that are set."""
    if "HTTPSConnection" in text:
        return "check the connection to login.microsoftonline.com, then run it again"
    present = [name for name in _VARIABLES if environment.get(name)]
    missing = [name for name in _VARIABLES if name not in present]
    if environment.get(_CERTIFICATE) and _VARIABLES[-1] in missing:
        missing.remove(_VARIABLES[-1])
        present.append(_CERTIFICATE)
    if not present:
        return LOGIN_FIX
    change = f"set {' and '.join(missing)}, too" if missing else f"correct {', '.join(present)}"
    return f"{change}; or unset {', '.join(present)}, and run `az login`"


def has_credentials() -> bool:
    """Return whether there is something to log in with."""
    folder = Path(os.environ.get("AZURE_CONFIG_DIR") or "~/.azure").expanduser()
    variables = (LOOPBACK, "AZURE_CLIENT_ID")
    return any(os.environ.get(name) for name in variables) or (folder / "azureProfile.json").exists()


def read_error(error: HttpResponseError) -> Any:
    """Return the body of an error; of an operation that failed, the error in it."""
    try:
        return error.response.json() if error.response is not None else None
    except ValueError:
        return None


@cache
def _connect(loopback: str) -> ARMPipelineClient[Any, Any]:
    """Return a client, which all threads of this process share, because every login takes seconds."""
    policies: list[Any] = [
        RequestIdPolicy(),
        UserAgentPolicy(USER_AGENT),
        ARMAutoResourceProviderRegistrationPolicy(),
        Retries(),
    ]
    options = {"connection_timeout": CALL_TIMEOUT_S, "read_timeout": CALL_TIMEOUT_S}
    if loopback:
        return ARMPipelineClient(f"http://127.0.0.1:{int(loopback)}", policies=policies, **options)
    credential = ChainedTokenCredential(EnvironmentCredential(), AzureCliCredential(process_timeout=AZ_TIMEOUT_S))
    policies.append(ARMChallengeAuthenticationPolicy(credential, f"{ENDPOINT}/.default"))
    return ARMPipelineClient(ENDPOINT, policies=policies, **options)


def _explain(where: str, error: HttpResponseError, *, deleting: bool = False) -> ResourceError:
    request = error.response.headers.get("x-ms-request-id", "") if error.response is not None else ""
    return explain_error(where, error.status_code, read_error(error), request, deleting=deleting)


def _read_result(response: Any) -> Message:
    http = response.http_response
    answer: Message = http.json() if http.content else {}
    return answer


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
