"""A server on loopback that answers as osv.dev does, from records in its format."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Query = tuple[str, str]


def make_record(name: str, number: int, fixed: str) -> dict[str, Any]:
    """Return a record of a vulnerability in all versions before `fixed`; without it, in all versions."""
    events = [{"introduced": "0"}, *([{"fixed": fixed}] if fixed else [])]
    package = {"name": name, "ecosystem": "PyPI"}
    ranges = [{"type": "ECOSYSTEM", "events": events}]
    identity = {"id": f"GHSA-test-0000-{number:04}", "aliases": [f"CVE-2099-{number:04}"], "details": ""}
    return {**identity, "affected": [{"package": package, "ranges": ranges}]}


@contextmanager
def serve(
    records: dict[str, list[dict[str, Any]]], status: int = 200, probe: int = 405
) -> Iterator[tuple[str, list[Query]]]:
    """Serve records by package, and yield the address and the list of queries, which grows.

    `status` is the status of answers to queries, 0 for closed connections; `probe` that of answers to other requests.
    """
    queries: list[Query] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            queries.append((query["package"]["name"], query["version"]))
            if not status:
                return
            vulnerabilities = records.get(query["package"]["name"], [])
            self._answer(status, json.dumps({"vulns": vulnerabilities} if vulnerabilities else {}).encode())

        def do_GET(self) -> None:
            self._answer(probe, b"{}")

        def _answer(self, code: int, content: bytes) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query", queries
        server.shutdown()
