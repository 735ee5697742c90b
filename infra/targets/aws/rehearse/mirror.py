"""Public servers from which machines download: their files are stand-ins that count as what they stand for."""

from __future__ import annotations

import io
import ssl
import tarfile
import threading
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from bootstrap.steps.cloud import slurm_packages
from infra.targets.aws.node.cloud import LUSTRE_CLIENT

_KEY = b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n%s\n-----END PGP PUBLIC KEY BLOCK-----\n"


@dataclass(frozen=True)
class Mirror:
    """Files by address, and the SHA-256 of the file that each stands for by its own."""

    files: Mapping[str, bytes]
    digests: Mapping[str, str]

    @property
    def hosts(self) -> list[str]:
        return sorted({urlsplit(address).hostname or "" for address in self.files})

    def render_digests(self) -> str:
        """Return the file that the stand-in of sha256sum reads."""
        return "".join(f"{own} {original}\n" for own, original in self.digests.items())


def make_mirror() -> Mirror:
    """Return the files that machines download: Slurm's sources, and the key of the Lustre clients."""
    archives = {source: _pack_source(source.version) for source in slurm_packages.SOURCES.values()}
    files = {address: archive for source, archive in archives.items() for address in source.addresses}
    return Mirror(
        files={**files, LUSTRE_CLIENT.key_url: _KEY % b64encode(b"A stand-in of a rehearsal.")},
        digests={sha256(archive).hexdigest(): source.sha256 for source, archive in archives.items()},
    )


@contextmanager
def serve_files(mirror: Mirror, address: str, tls: ssl.SSLContext) -> Iterator[int]:
    """Serve the files over TLS at an address of this machine and yield the port."""
    contents = {(urlsplit(url).hostname, urlsplit(url).path): content for url, content in mirror.files.items()}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # named by the library
            content = contents.get((self.headers.get("Host", ""), self.path))
            self.send_response(HTTPStatus.NOT_FOUND if content is None else HTTPStatus.OK)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *arguments: object) -> None:
            """Print nothing: the timeline shows what machines do."""

    with ThreadingHTTPServer((address, 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


def _pack_source(version: str) -> bytes:
    """Return Slurm's source as far as the build needs it: the names of the packages that it makes."""
    names = dict.fromkeys(name for role in slurm_packages.NAMES.values() for name in role)
    packages = "".join(f"{name}_{version}-1_amd64.deb\n" for name in names)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path, text in (("control", "Source: slurm-smd\n"), ("stand-ins", packages)):
            entry = tarfile.TarInfo(f"slurm-{version}/debian/{path}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()
