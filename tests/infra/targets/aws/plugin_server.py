"""A server on loopback in place of Pulumi's, with an archive of the AWS plugin that is pinned."""

from __future__ import annotations

import hashlib
import io
import platform
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.targets.aws import plugin

PROGRAM = b"#!/bin/sh\n"


@contextmanager
def serve_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Pin an archive in an empty folder, serve it while the context is open, and yield its path."""
    version, machine = plugin.required_version(), platform.machine()
    folder.mkdir()
    archive = folder / f"pulumi-resource-aws-{version}-linux-{plugin.ARCHITECTURES[machine]}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        entry = tarfile.TarInfo("pulumi-resource-aws")
        entry.size, entry.mode = len(PROGRAM), 0o755
        tar.addfile(entry, io.BytesIO(PROGRAM))
    pins = {(version, machine): hashlib.sha256(archive.read_bytes()).hexdigest()}
    monkeypatch.setattr(plugin, "SHA256", pins)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(plugin, "RELEASES", f"http://127.0.0.1:{server.server_port}")
        yield archive
        server.shutdown()
