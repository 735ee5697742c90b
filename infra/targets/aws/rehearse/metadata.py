"""The instance metadata service of a rehearsal: IMDSv2 only; it answers for the machine with the client's address."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN_PATH = "/latest/api/token"  # noqa: S105  # a path
_DATA, _USER_DATA = "/latest/meta-data/", "/latest/user-data"
_TAGS = "tags/instance/"
_ROLES = "iam/security-credentials/"
_LIFETIME = timedelta(hours=6)


@dataclass(frozen=True)
class Metadata:
    """What the service knows of a machine."""

    instance: str
    address: str
    launch_index: int
    tags: Mapping[str, str]
    user_data: str
    role: str
    access_key: str
    """Key id of the role's credentials; empty until the role is known to the service."""
    account: str = "123456789012"
    """Number of the account; by default that of moto."""
    is_spot: bool = False
    taken_at: datetime | None = None
    """When EC2 takes the machine back, once that is announced."""
    on_user_data: Callable[[], None] = lambda: None
    """Called when the machine reads its user data."""

    def read(self, path: str, now: datetime) -> str | None:
        """Return the value at a path of the service, or None if there is none."""
        if path == _USER_DATA:
            return self.user_data
        name = path.removeprefix(_DATA)
        if name.startswith(_TAGS):
            return self.tags.get(name.removeprefix(_TAGS))
        values = {
            "instance-id": self.instance,
            "local-ipv4": self.address,
            "ami-launch-index": str(self.launch_index),
            "instance-life-cycle": "spot" if self.is_spot else "on-demand",
        }
        if self.taken_at:
            values["spot/instance-action"] = json.dumps({"action": "terminate", "time": _render_time(self.taken_at)})
        if self.access_key:
            values |= {_ROLES: self.role, _ROLES + self.role: self._render_credentials(now)}
            profile = f"arn:aws:iam::{self.account}:instance-profile/{self.role}"
            values["iam/info"] = json.dumps({"Code": "Success", "InstanceProfileArn": profile})
        return values.get(name)

    def _render_credentials(self, now: datetime) -> str:
        return json.dumps(
            {
                "Code": "Success",
                "Type": "AWS-HMAC",
                "AccessKeyId": self.access_key,
                "SecretAccessKey": "of-this-rehearsal",
                "Token": f"session-of-{self.instance}",
                "LastUpdated": _render_time(now),
                "Expiration": _render_time(now + _LIFETIME),
            }
        )


@contextmanager
def serve_metadata(address: str, find: Callable[[str], Metadata | None]) -> Iterator[int]:
    """Serve metadata at an address of this machine and yield the port; `find` returns the machine of an address."""
    token = secrets.token_urlsafe()

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:  # named by the library
            lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            is_valid = self.path == TOKEN_PATH and lifetime
            self._send(HTTPStatus.OK if is_valid else HTTPStatus.BAD_REQUEST, token if is_valid else "")

        def do_GET(self) -> None:  # named by the library
            if self.headers.get("X-aws-ec2-metadata-token") != token:
                self._send(HTTPStatus.UNAUTHORIZED, "")
                return
            machine = find(self.client_address[0])
            if machine and self.path == _USER_DATA:
                machine.on_user_data()
            value = machine.read(self.path, datetime.now(UTC)) if machine else None
            self._send(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or "")

        def _send(self, status: HTTPStatus, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: object) -> None:
            """Print nothing: a machine asks several times a second while it waits."""

    with ThreadingHTTPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def _render_time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
