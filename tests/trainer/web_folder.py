"""A web server on loopback that serves a folder, with faults that occur in networks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class WebFolder:
    """A served folder; the fields may be changed while it runs."""

    root: Path
    url: str = ""
    has_ranges: bool = True
    statuses: list[int] = field(default_factory=list)
    """Statuses of the next answers; afterwards files are served."""
    break_after: list[int] = field(default_factory=list)
    """Bytes after which the next answers break off."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Name of the file and requested range of each request."""

    def count(self, suffix: str) -> int:
        return sum(name.endswith(suffix) for name, _ in self.requests)


@contextmanager
def serve(root: Path) -> Iterator[WebFolder]:
    folder = WebFolder(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _answer(self, folder)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    folder.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield folder
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer(handler: BaseHTTPRequestHandler, folder: WebFolder) -> None:
    byte_range = handler.headers.get("Range", "")
    folder.requests.append((handler.path, byte_range))
    path = folder.root / handler.path.lstrip("/")
    status = folder.statuses.pop(0) if folder.statuses else 200 if path.is_file() else 404
    if status != 200:
        handler.send_error(status)
        return
    body = path.read_bytes()
    if byte_range and folder.has_ranges:
        start = int(byte_range.removeprefix("bytes=").rstrip("-"))
        if start >= len(body):
            handler.send_error(416)
            return
        body, status = body[start:], 206
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body[: folder.break_after.pop(0)] if folder.break_after else body)
