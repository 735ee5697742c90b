"""Serve the resources of FakeArm over HTTP on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from tests.infra.targets.azure.fake_arm import FakeArm


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Otherwise every answer waits 40 ms for the acknowledgement of its headers.
    disable_nagle_algorithm = True
    wbufsize = -1
    arm: FakeArm

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        status, headers, answer = self.arm.handle(self.command, self.path, body)
        content = json.dumps(answer).encode() if answer is not None else b""
        self.send_response(status)
        for name, value in {**headers, "x-ms-request-id": "request-1", "Content-Type": "application/json"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_PATCH = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def serve_arm(arm: FakeArm) -> Iterator[FakeArm]:
    """Serve on a port of the loopback interface for the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"arm": arm}))
    arm.port = server.server_address[1]
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield arm
    finally:
        server.shutdown()
        server.server_close()
        arm.close()
