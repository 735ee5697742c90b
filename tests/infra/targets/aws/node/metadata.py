"""A fake instance metadata service: IMDSv2 only; it answers for the machine with the client's address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "a-token-of-this-service"
CREDENTIALS = {"AccessKeyId": "testing", "SecretAccessKey": "testing", "Token": "session"}


@dataclass
class Machine:
    """What the metadata service knows of a machine."""

    instance: str
    address: str
    tags: dict[str, str] = field(default_factory=dict)
    launch_index: int = 0

    def answer(self, path: str) -> str | None:
        values = {
            "instance-id": self.instance,
            "local-ipv4": self.address,
            "ami-launch-index": str(self.launch_index),
            "iam/info": json.dumps({"InstanceProfileArn": "arn:aws:iam::123456789012:instance-profile/compute"}),
            "iam/security-credentials/": "the-role\n",
            "iam/security-credentials/the-role": json.dumps(CREDENTIALS),
        }
        return values.get(path, self.tags.get(path.removeprefix("tags/instance/")))


@contextmanager
def metadata(address: str, machines: dict[str, Machine]) -> Iterator[str]:
    """Serve metadata of machines by address, which may be added later, and yield the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            self._send(200 if ttl and self.path == "/latest/api/token" else 400, TOKEN)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
                return self._send(401, "IMDSv1 is off")
            value = machines[self.client_address[0]].answer(self.path.removeprefix("/latest/meta-data/"))
            return self._send(404 if value is None else 200, value or "")

        def _send(self, code: int, text: str) -> None:
            self.send_response(code)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer((address, 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
