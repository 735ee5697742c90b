"""Pulumi's release is downloaded from a real server on loopback if it is pinned, verified, and installed atomically."""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from setup import pins, pulumi, pulumi_go
from setup.facts import Facts
from setup.paths import Paths
from setup.run import SetupError
from tests.setup.machine import machine

ARCHIVE = f"pulumi-v{pins.PULUMI}-linux-x64.tar.gz"
RELEASE: Facts = machine(missing=frozenset({"pulumi"}), reach={"release": True})
REPO = Path(__file__).resolve().parents[2]
INSTALL = """
import sys
from pathlib import Path
from setup import pins, pulumi
from setup.paths import Paths
from tests.setup.machine import machine
pulumi.RELEASES = sys.argv[1]
pins.PULUMI_SHA256["x86_64"] = sys.argv[3]
cache = Path(sys.argv[2])
pulumi.install(Paths(cache, cache), machine(reach={"release": True}), cache / "log")
"""


class Server:
    """An HTTP server of `files` that stalls half-way through each file in `stalled`."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.stalled: set[str] = set()
        self.requests: list[str] = []
        self.half_sent = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self._head()

            def do_GET(self) -> None:
                content = self._head()
                if self.path.lstrip("/") in server.stalled:
                    self.wfile.write(content[: len(content) // 2])
                    self.wfile.flush()
                    server.half_sent.set()
                    threading.Event().wait(240)
                else:
                    self.wfile.write(content)

            def _head(self) -> bytes:
                server.requests.append(self.path)
                content = server.files.get(self.path.lstrip("/"))
                self.send_response(200 if content else 404)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                return content or b""

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    served = Server()
    served.files = {ARCHIVE: _release(pins.PULUMI_FILES)}
    monkeypatch.setattr(pulumi, "RELEASES", served.url)
    monkeypatch.setattr(pins, "PULUMI_SHA256", {"x86_64": _sha256(served.files[ARCHIVE]), "aarch64": "0" * 64})
    yield served
    served.http.shutdown()
    served.http.server_close()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path, tmp_path)


def test_the_release_is_installed(server: Server, paths: Paths) -> None:
    assert pulumi.is_release_reachable("x86_64")
    assert not pulumi.is_release_reachable("aarch64")
    pulumi.install(paths, RELEASE, paths.cache / "log")
    assert pulumi.is_complete(paths.pulumi / "bin")
    assert sorted(path.name for path in paths.pulumi.rglob("*") if path.is_file()) == sorted(pins.PULUMI_FILES)
    assert list(paths.scratch.iterdir()) == []


def test_an_unreachable_release_is_detected(server: Server) -> None:
    server.files.clear()
    assert not pulumi.is_release_reachable("x86_64")


def test_a_release_that_is_not_pinned_is_not_downloaded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "PULUMI_SHA256", {})
    assert not pulumi.is_release_reachable("x86_64")
    assert server.requests == []


def test_a_release_that_its_origin_replaced_is_rejected(server: Server, tmp_path: Path) -> None:
    """The origin also serves checksums that match what it serves: they count for nothing."""
    replaced = _release((*pins.PULUMI_FILES, "extra"))
    sums = f"pulumi-{pins.PULUMI}-checksums.txt"
    server.files = {ARCHIVE: replaced, sums: f"{_sha256(replaced)}  {ARCHIVE}\n".encode()}
    with pytest.raises(SetupError, match=rf"{ARCHIVE} has SHA-256 \w+, setup/pins.py has \w{{64}}: not used"):
        pulumi.fetch_release("x86_64", tmp_path / "staging", tmp_path / "log")
    assert not (tmp_path / "staging" / "bin").exists()


def test_a_replaced_release_is_shown_and_pulumi_is_built(
    server: Server, paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.files[ARCHIVE] = _release((*pins.PULUMI_FILES, "extra"))
    built: list[Path] = []
    monkeypatch.setattr(pulumi_go, "build", lambda _paths, _machine, staging, _log: built.append(staging))
    pulumi._obtain(paths, RELEASE, paths.cache / "staging", paths.cache / "log")
    assert built == [paths.cache / "staging"]
    printed = capsys.readouterr().out
    assert printed.startswith(f"pulumi: {ARCHIVE} has SHA-256 ")
    assert printed.endswith(": not used; building from Go modules instead\n")


def test_an_archive_without_the_language_host_is_rejected(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files = {ARCHIVE: _release(("pulumi",))}
    monkeypatch.setitem(pins.PULUMI_SHA256, "x86_64", _sha256(server.files[ARCHIVE]))
    with pytest.raises(SetupError, match="has no pulumi/pulumi-language-python: not used"):
        pulumi.fetch_release("x86_64", tmp_path / "staging", tmp_path / "log")


def test_an_incomplete_cache_is_not_used_and_is_repaired(server: Server, paths: Paths) -> None:
    pulumi.install(paths, RELEASE, paths.cache / "log")
    (paths.pulumi / "bin" / "pulumi-language-python").unlink()
    (paths.scratch / "pulumi" / "staging").mkdir(parents=True)
    assert not pulumi.is_complete(paths.pulumi / "bin")
    pulumi.install(paths, RELEASE, paths.cache / "log")
    assert pulumi.is_complete(paths.pulumi / "bin")
    assert list(paths.scratch.iterdir()) == []


def test_a_run_recovers_from_a_killed_download(server: Server, paths: Paths) -> None:
    server.stalled = {ARCHIVE}
    command = [sys.executable, "-c", INSTALL, server.url, str(paths.cache), _sha256(server.files[ARCHIVE])]
    victim = subprocess.Popen(command, cwd=REPO)
    assert server.half_sent.wait(120)
    victim.kill()
    victim.wait()
    assert not paths.pulumi.exists()
    assert (paths.scratch / "pulumi").exists()

    server.stalled = set()
    assert subprocess.run(command, cwd=REPO).returncode == 0
    assert pulumi.is_complete(paths.pulumi / "bin")
    assert list(paths.scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("version", "names", "taken"),
    [
        ("v3.259.0", pins.PULUMI_FILES, True),
        ("v3.300.1", pins.PULUMI_FILES, True),
        ("v3.258.0", pins.PULUMI_FILES, False),
        ("v4.0.0", pins.PULUMI_FILES, False),
        ("v4.12.3", pins.PULUMI_FILES, False),
        ("v3.300.1", ("pulumi",), False),
    ],
)
def test_pulumi_on_path_is_used_if_it_is_complete_and_new_enough(
    version: str, names: tuple[str, ...], taken: bool, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = paths.root / "path"
    place.mkdir()
    for name in names:
        (place / name).write_text(f"#!/bin/sh\necho {version}\n")
        (place / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(place))
    assert pulumi.is_installed(paths) is taken


def test_pulumi_yaml_requires_the_pinned_versions() -> None:
    accepted = f'requiredPulumiVersion: ">={pins.PULUMI} <{pins.PULUMI_BELOW}"'
    assert accepted in (REPO / "Pulumi.yaml").read_text().splitlines()


def test_wrapper_modules_are_pinned() -> None:
    for module in ("cli", "language-python"):
        folder = REPO / "setup" / "pulumi" / module
        assert (folder / "go.sum").stat().st_size > 1000
    cli = (REPO / "setup" / "pulumi" / "cli" / "go.mod").read_text()
    assert f"github.com/pulumi/pulumi/pkg/v3 v{pins.PULUMI}\n" in cli
    assert f"\ngo {pins.GO}\n" in cli
    host = (REPO / "setup" / "pulumi" / "language-python" / "go.mod").read_text()
    assert f"github.com/pulumi/pulumi/sdk/v3 v{pins.LANGUAGE_HOST}\n" in host


OLD_GO = """#!/bin/sh
case "$*" in
  version) echo go version go1.19.8 linux/amd64 ;;
  *) echo '{"Path": "golang.org/toolchain", "Sum": "'"$SUM"'", "Dir": "'"$HOME"'"}' ;;
esac
"""


@pytest.mark.parametrize(
    ("machine_", "sum_", "error"),
    [
        ("x86_64", pins.GO_SUMS["x86_64"], None),
        ("x86_64", "h1:other=", r"golang.org/toolchain has the checksum h1:other=, setup/pins.py has h1:\S+: not used"),
        ("aarch64", "h1:other=", rf"older than {pins.GO}, which is not pinned for aarch64: install {pins.GO} or newer"),
    ],
)
def test_a_newer_go_is_used_only_with_its_pinned_checksum(
    machine_: str, sum_: str, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for Go prints what `go mod download` would."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(OLD_GO)
    go.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SUM", sum_)
    if error is None:
        assert pulumi_go.choose_go(str(go), machine_, tmp_path / "log") == str(go)
    else:
        with pytest.raises(SetupError, match=error):
            pulumi_go.choose_go(str(go), machine_, tmp_path / "log")


@pytest.mark.parametrize(("version", "enough"), [("1.25.10", False), (pins.GO, True), ("1.26.0", True)])
def test_an_installed_go_is_enough_if_it_is_as_new_as_the_pinned(version: str, enough: bool, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.write_text(f"#!/bin/sh\necho go version go{version} linux/arm64\n")
    go.chmod(0o755)
    assert pulumi_go.is_new_enough(str(go)) is enough
    assert not pulumi_go.is_new_enough(None)


@pytest.mark.engine
def test_the_installed_pulumi_runs(tmp_path: Path) -> None:
    binaries = Paths.from_environment().pulumi / "bin"
    program = binaries / "pulumi" if pulumi.is_complete(binaries) else shutil.which("pulumi")
    assert program is not None
    done = subprocess.run([program, "version"], capture_output=True, text=True, env={"HOME": str(tmp_path)})
    assert done.stdout.strip().removeprefix("v") >= pins.PULUMI


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _release(names: tuple[str, ...]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            content = b"#!/bin/sh\necho v3.259.0\n"
            entry = tarfile.TarInfo(f"pulumi/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
