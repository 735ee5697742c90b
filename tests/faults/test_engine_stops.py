"""The Docker engine goes away in the middle of `up`: one message, no hang, and the next `up` goes on where it was."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path

from tests.harness import Spec, Stack, existing, small_spec, wait_until

ENGINE = "/var/run/docker.sock"


class Engine:
    """A socket in front of the engine that a test can take away."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(ENGINE)
                self._open += [near, far]
                threading.Thread(target=copy, args=(near, far), daemon=True).start()
                threading.Thread(target=copy, args=(far, near), daemon=True).start()


def copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_the_engine_stops_while_machines_are_made(make_stack: Callable[[str, Spec], Stack], tmp_path: Path) -> None:
    stack = make_stack("gone", small_spec(login={"enabled": False}))
    engine = Engine(tmp_path / "docker.sock")
    stack.env["DOCKER_HOST"] = f"unix://{tmp_path}/docker.sock"
    up = stack.start("up")
    wait_until(lambda: bool(existing(stack.cluster)) or up.poll() is not None, "the first part exists", 60)
    engine.stop()
    assert up.wait(timeout=120) != 0
    said = (stack.home / "started.log").read_text()
    assert "Docker" in said
    assert "docker.sock" in said
    assert "Traceback" not in said
    del stack.env["DOCKER_HOST"]
    stack.up()
    assert len(stack.ssh("controller", "srun -p gpu -N2 hostname").splitlines()) == 2
    stack.muster("teardown", "--yes")
    assert stack.exists() == []
