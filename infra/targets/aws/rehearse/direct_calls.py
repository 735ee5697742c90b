"""Calls of this process that reach moto as function calls.

Connections, a thread for each of them and new clients took two thirds of the time of a call. Other processes still call
moto's server.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from botocore import httpsession
from botocore import session as sessions
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import ClientCreator
from botocore.endpoint import Endpoint
from botocore.model import ServiceModel
from urllib3 import HTTPHeaderDict, HTTPResponse
from werkzeug.test import EnvironBuilder

from infra.targets.aws.rehearse.moto_server import Moto, Wsgi


@contextmanager
def call_directly(server: Moto) -> Iterator[None]:
    """Let the clients of this process call a server's application instead of its port during a block."""
    send = Endpoint._send  # the only place through which every request goes after it is signed

    def send_directly(self: Endpoint, request: AWSPreparedRequest) -> AWSResponse:
        if server.app and request.url.startswith(f"{server.url}/"):
            return _call(server.app, request)
        return send(self, request)

    create_context = httpsession.create_urllib3_context
    Endpoint._send = send_directly
    # Each client has one with the certificates of all authorities, which is not used without TLS.
    httpsession.create_urllib3_context = cache(create_context)
    try:
        with create_clients_fast():
            yield
    finally:
        Endpoint._send, httpsession.create_urllib3_context = send, create_context


@contextmanager
def create_clients_fast() -> Iterator[None]:
    """Let the clients of this process share what is the same for all of a service during a block.

    Otherwise each session reads the descriptions of the services, of which EC2's alone takes a quarter of a second.
    """
    create_loader, create_methods = sessions.create_loader, ClientCreator._create_methods
    load_model = ClientCreator._load_service_model
    sessions.create_loader, ClientCreator._create_methods = cache(create_loader), _create_methods_once(create_methods)
    ClientCreator._load_service_model = _load_model_once(load_model)
    try:
        yield
    finally:
        sessions.create_loader, ClientCreator._create_methods = create_loader, create_methods
        ClientCreator._load_service_model = load_model


def _create_methods_once(create: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return botocore's method that creates the 700 methods of an EC2 client, but creates those of a service once.

    Methods depend on the service alone; each client still has a class of its own.
    """
    methods: dict[tuple[str, str], dict[str, Any]] = {}

    def create_methods(self: ClientCreator, service_model: ServiceModel) -> dict[str, Any]:
        key = (service_model.service_name, service_model.api_version)
        if key not in methods:
            methods[key] = create(self, service_model)
        return dict(methods[key])

    return create_methods


def _load_model_once(load: Callable[..., ServiceModel]) -> Callable[..., ServiceModel]:
    """Return botocore's method that wraps the description of a service, but wraps each only once.

    A new client asks the wrapper whether the service has its own way to find endpoints, and each new wrapper reads all
    700 operations of EC2 to answer.
    """
    models: dict[tuple[str, str | None], ServiceModel] = {}

    def load_model(self: ClientCreator, service_name: str, api_version: str | None = None) -> ServiceModel:
        key = (service_name, api_version)
        if key not in models:
            models[key] = load(self, service_name, api_version)
        return models[key]

    return load_model


def _call(app: Wsgi, request: AWSPreparedRequest) -> AWSResponse:
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    data = b"".join(app(_to_environ(request), lambda status, headers, *_: seen.append((status, headers))))
    ((status, headers),) = seen
    raw = HTTPResponse(
        # An answer to HEAD has no body, whatever the application returns.
        body=io.BytesIO(b"" if request.method == "HEAD" else data),
        headers=HTTPHeaderDict(headers),
        status=int(status.split()[0]),
        preload_content=False,
        decode_content=False,
        request_method=request.method,
    )
    response = AWSResponse(request.url, raw.status, raw.headers, raw)
    if not request.stream_output:
        response.content  # noqa: B018  # reads it
    return response


def _to_environ(request: AWSPreparedRequest) -> dict[str, Any]:
    origin, _, path = request.url.removeprefix("http://").partition("/")
    body = request.body or b""
    data = body.read() if hasattr(body, "read") else body.encode() if isinstance(body, str) else bytes(body)
    headers = {
        name: value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()
    }
    # The length is that of the data, also of a body that would be sent in chunks.
    sent = {
        name: value for name, value in headers.items() if name.lower() not in ("content-length", "transfer-encoding")
    }
    builder = EnvironBuilder(
        path=f"/{path}", base_url=f"http://{origin}/", method=request.method, headers=sent, data=data
    )
    return builder.get_environ()
