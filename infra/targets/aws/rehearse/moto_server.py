"""AWS on this machine: moto's server with a record of every call, a judge of each call, and injected faults."""

from __future__ import annotations

import io
import re
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode

import boto3
from moto.ec2.models import ec2_backends
from moto.moto_api._internal.models import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from moto.ssm.models import ssm_backends
from werkzeug.serving import make_server

from infra.targets.aws.rehearse import moto_dlm
from infra.targets.aws.rehearse.moto_errors import SHORTAGE, Answer, denial_code, render_error

ACCOUNT = "123456789012"
REGION = "us-east-1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
}

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


Judge = Callable[[str, str, str, dict[str, str]], str]
"""Returns why a call is denied, or an empty string; given the caller's key id, the service, action and parameters.

The key id is empty for a call without credentials.
"""

Interference = Callable[[str, str, dict[str, str]], str]
"""Returns the error code with which a call fails, or an empty string; given the service, action and parameters."""


@dataclass(frozen=True)
class Call:
    """A recorded API call."""

    service: str
    action: str
    """Name in the API (`RunInstances`); `METHOD /path` if the protocol has no action."""
    params: dict[str, str]
    """Flat parameters as sent (`TagSpecification.1.Tag.1.Key`) in query protocols, else `body`, and `query` in REST."""
    status: int


# Without a region for us-east-1.
_BUCKET_HOST = re.compile(r"(.+)\.s3(?:\.[a-z0-9-]+)?\.amazonaws\.com")


@dataclass
class Fault:
    """A fault to inject into the next calls of an action."""

    action: str
    code: str = ""
    times: int = 1
    after: bool = False
    """Whether the fault occurs after the call was executed, so that only its answer is lost."""
    before: Callable[[], None] | None = None
    """Is called before the call is executed."""
    then: Callable[[], None] | None = None


@dataclass
class Moto:
    """A moto server; every field may be changed while it runs."""

    url: str = ""
    app: Wsgi | None = None
    """The application that answers at `url`, which this process may also call."""
    calls: list[Call] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    capacity: dict[tuple[str, str], int] = field(default_factory=dict)
    """Machines left by (instance type, zone); without an entry there is no limit."""
    tokens: dict[str, Answer] = field(default_factory=dict)
    """Answers to RunInstances by client token."""
    clients: dict[tuple[str, str], Any] = field(default_factory=dict)
    access_key: str = ENVIRONMENT["AWS_ACCESS_KEY_ID"]
    """Key id of the operator's credentials."""
    judge: Judge | None = None
    """Decides whether a call is permitted; without it, every call is."""
    interfere: Interference | None = None
    """Decides whether a call fails, before it is executed; `faults` are for calls that are known beforehand."""

    def fail(self, action: str, code: str, times: int = 1) -> None:
        """Reject the next calls of `action` with this error."""
        self.faults.append(Fault(action, code, times))

    def lose_answer(self, action: str, times: int = 1) -> None:
        """Execute the next calls but answer with a server error."""
        self.faults.append(Fault(action, "InternalError", times, after=True))

    @contextmanager
    def hold(self, action: str) -> Iterator[threading.Event]:
        """Hold all calls of `action` until the block ends; yield an event that is set when the first one arrives."""
        arrived, released = threading.Event(), threading.Event()

        def wait() -> None:
            arrived.set()
            released.wait()

        fault = Fault(action, times=sys.maxsize, before=wait)
        self.faults.append(fault)
        try:
            yield arrived
        finally:
            self.faults.remove(fault)
            released.set()

    def when_done(self, action: str, then: Callable[[], None]) -> None:
        """Call `then` once, after the next call of `action` was executed and before its answer is sent."""
        self.faults.append(Fault(action, after=True, then=then))

    def place(self, instance: str, *nodes: str) -> None:
        """Set the network nodes of an instance in DescribeInstanceTopology, from the top down."""
        backend = ec2_backends[ACCOUNT][REGION]
        backend.__dict__.setdefault("muster_places", {})[instance] = {"nodes": list(nodes)}

    def answer(self, text: str, out: str, *, code: int = 0, err: str = "") -> None:
        """Set the Run Command result of every script that contains `text`."""
        result = {"StandardOutputContent": out, "StandardErrorContent": err, "ResponseCode": code}
        answers = ssm_backends[ACCOUNT][REGION].__dict__.setdefault("muster_answers", {})
        answers[text] = result | {"Status": "Failed" if code else "Success"}

    def count(self) -> Counter[str]:
        return Counter(call.action for call in self.calls)

    def of(self, action: str) -> list[Call]:
        return [call for call in self.calls if call.action == action]

    def environment(self, region: str = REGION) -> dict[str, str]:
        own = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_ENDPOINT_URL": self.url, "AWS_DEFAULT_REGION": region}
        return ENVIRONMENT | own

    def client(self, service: str, region: str = REGION) -> Any:
        """Return a client for the test itself, the same for each service; its calls are recorded too."""
        if (service, region) not in self.clients:
            self.clients[service, region] = boto3.client(
                service,
                region_name=region,
                endpoint_url=self.url,
                aws_access_key_id=self.access_key,
                aws_secret_access_key="testing",  # noqa: S106  # no secret: moto accepts anything
            )
        return self.clients[service, region]

    def reset(self) -> None:
        moto_api_backend.reset()
        self.interfere = None
        for records in (self.calls, self.faults, self.capacity, self.tokens):
            records.clear()


@contextmanager
def listening(server: Moto, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve the same AWS at another address and yield its URL."""
    dispatcher = _Dispatcher(create_backend_app)
    server.app = app = _Faulty(dispatcher, server)
    http = make_server(address, 0, app, threaded=True, request_handler=_Quiet, ssl_context=tls)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{address}:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()


class _Quiet(MotoRequestHandler):  # type: ignore[misc]  # moto is Any to the checker
    def log_request(self, *args: Any) -> None:
        pass


class _Dispatcher(DomainDispatcherApplication):  # type: ignore[misc]  # moto is Any to the checker
    """Moto's choice of a service. One that it lacks is refused, without the advice that moto prints for its authors."""

    def get_backend_for_host(self, host: str | None) -> Any:
        if host and "amazonaws.com" in host and not self._has(host):
            raise NotImplementedError(f"no service at {host}")
        return super().get_backend_for_host(host)

    def _has(self, host: str) -> bool:
        return any(pattern.match(f"http://{host}") for _, pattern in self.backend_url_patterns)


class _Faulty:
    """A wrapper around moto that records calls, injects faults, limits capacity and honours client tokens."""

    def __init__(self, app: Wsgi, server: Moto) -> None:
        self.app, self.server = app, server
        self.lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = _read_body(environ)
        service, action, params = _parse_request(environ, body)
        if denial := self._judge(environ, service, action, params):
            answer = render_error(service, denial_code(service), denial)
        elif code := self.server.interfere(service, action, params) if self.server.interfere else "":
            answer = render_error(service, code)
        else:
            answer = self._answer_or_fail(environ, service, action, params, body)
        status, headers, data = answer
        self.server.calls.append(Call(service, action, params, int(status.split()[0])))
        start_response(status, headers)
        return [data]

    def _judge(self, environ: dict[str, Any], service: str, action: str, params: dict[str, str]) -> str:
        if self.server.judge is None:
            return ""
        caller = re.search(r"Credential=([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
        return self.server.judge(caller[1] if caller else "", service, action, params)

    def _answer_or_fail(
        self, environ: dict[str, Any], service: str, action: str, params: dict[str, str], body: bytes
    ) -> Answer:
        fault = self._fault(action)
        if fault and fault.before:
            fault.before()
        if fault and fault.code and not fault.after:
            return render_error(service, fault.code)
        answer = self._answer(environ, service, action, params, body)
        if fault and fault.then:
            fault.then()
        return render_error(service, fault.code) if fault and fault.after and fault.code else answer

    def _fault(self, action: str) -> Fault | None:
        with self.lock:
            fault = next((f for f in self.server.faults if f.action == action and f.times > 0), None)
            if fault:
                fault.times -= 1
            return fault

    def _answer(
        self, environ: dict[str, Any], service: str, action: str, params: dict[str, str], body: bytes
    ) -> Answer:
        if service == moto_dlm.SERVICE:
            return moto_dlm.answer(ACCOUNT, REGION, action, body)
        if action != "RunInstances":
            return self._pass_on(environ, service, body)
        with self.lock:
            token = params.get("ClientToken", "")
            if token and token in self.server.tokens:
                return self.server.tokens[token]
            granted = self._granted(params)
            if granted < int(params["MinCount"]):
                return render_error(service, SHORTAGE)
            # moto starts MinCount machines; AWS starts as many as are available, up to MaxCount.
            answer = self._pass_on(environ, service, urlencode(params | {"MinCount": str(granted)}).encode())
            if token and answer[0].startswith("200"):
                self.server.tokens[token] = answer
            return answer

    def _granted(self, params: dict[str, str]) -> int:
        requested = int(params["MaxCount"])
        subnet = params.get("SubnetId") or params.get("NetworkInterface.1.SubnetId")
        if not subnet or not self.server.capacity:
            return requested
        backend = ec2_backends[ACCOUNT][REGION]
        pool = (params["InstanceType"], backend.get_subnet(subnet).availability_zone)
        if pool not in self.server.capacity:
            return requested
        granted = min(requested, self.server.capacity[pool])
        if granted >= int(params["MinCount"]):
            self.server.capacity[pool] -= granted
        return granted

    def _pass_on(self, environ: dict[str, Any], service: str, body: bytes) -> Answer:
        seen: list[tuple[str, list[tuple[str, str]]]] = []
        sent = environ | {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        try:
            data = b"".join(self.app(sent, lambda status, headers, *_: seen.append((status, headers))))
        except NotImplementedError as missing:
            return render_error(service, "NotImplemented", f"moto: {missing}")
        return (*seen[0], data)


def _read_body(environ: dict[str, Any]) -> bytes:
    # A body in chunks, which botocore sends to S3 over TLS, has no length and an end that the server recognizes.
    length = -1 if environ.get("wsgi.input_terminated") else int(environ.get("CONTENT_LENGTH") or 0)
    body: bytes = environ["wsgi.input"].read(length)
    return body


def _parse_request(environ: dict[str, Any], body: bytes) -> tuple[str, str, dict[str, str]]:
    scope = re.search(r"Credential=[^/]+/[^/]+/[^/]+/([^/]+)/", environ.get("HTTP_AUTHORIZATION", ""))
    service = scope[1] if scope else ""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return service, target.rpartition(".")[2], {"body": body.decode()}
    if b"Action=" in body:
        params = dict(parse_qsl(body.decode(), keep_blank_values=True))
        return service, params["Action"], params
    params = {"body": body.decode(errors="replace"), "query": environ.get("QUERY_STRING", "")}
    # AWS's libraries name a bucket in the host, muster's own code in the path.
    named = _BUCKET_HOST.fullmatch(environ.get("HTTP_HOST", ""))
    bucket = f"/{named[1]}" if service == "s3" and named else ""
    return service, f"{environ['REQUEST_METHOD']} {bucket}{environ['PATH_INFO']}", params
