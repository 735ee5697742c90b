"""The training environment of the nodes, kept in a Docker volume so that a new cluster finds it filled."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path
from uuid import uuid4

from setup import pins
from setup.facts import Facts
from setup.image import PROXIES
from setup.paths import Paths
from setup.run import ask, run

SCRIPT = "bootstrap/scripts/training-env.sh"
LOCK = "trainer/requirements.lock"
LIMIT_S = 60 * 60.0
SETTINGS = ("index-url", "extra-index-url", "trusted-host")


def key(paths: Paths) -> str:
    return hashlib.sha256((paths.root / LOCK).read_bytes()).hexdigest()[:16]


def cached(paths: Paths) -> bool:
    """The stamp names the volume by its id: one that was removed and made again is filled again."""
    volume = _volume()
    return volume is not None and _read(_stamp(paths)) == {"key": key(paths), "volume": volume}


def act(paths: Paths, _: Facts, log: Path) -> None:
    if _volume() is None:
        labels = ["--label", "muster.cache=env", "--label", f"muster.id={uuid4().hex}"]
        run(["docker", "volume", "create", *labels, pins.ENV_VOLUME], log)
    variables = {name: os.environ[name] for name in PROXIES if name in os.environ} | pip_settings(paths)
    # Only names: the values may hold passwords, and every user of the machine can read a command line.
    flags = [word for name in variables for word in ("-e", name)]
    fill = f"tar -C /tmp -x && bash /tmp/{SCRIPT} /tmp/{LOCK} /shared/env/{key(paths)}"
    with tempfile.TemporaryFile() as archive:
        archive.write(_tar(paths))
        archive.seek(0)
        # The host's network: the bridge may have no way out, and proxies on the host are reached too.
        argv = ["docker", "run", "--rm", "-i", "--network", "host", "--label", "muster.cache=env", *flags]
        mount = ["-v", f"{pins.ENV_VOLUME}:/shared/env"]
        # `timeout` hands on the signal that ends the client; a shell as a container's first process would not hear it.
        inside = ["timeout", "-k", "5", f"{LIMIT_S:.0f}", "sh", "-euc", fill]
        command = [*argv, *mount, pins.NODE_IMAGE, *inside]
        run(command, log, env={**os.environ, **variables}, stdin=archive, timeout=LIMIT_S)
    unfinished = _stamp(paths).with_suffix(".new")
    unfinished.write_text(json.dumps({"key": key(paths), "volume": _volume()}))
    unfinished.rename(_stamp(paths))


def pip_settings(paths: Paths) -> dict[str, str]:
    """Where this machine's pip gets packages from, said as variables, so that the nodes' pip goes there too."""
    text = ask([paths.venv / "bin" / "python", "-m", "pip", "config", "list"]).out
    return parse_pip_settings(text)


def parse_pip_settings(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        setting = name.rsplit(".", 1)[-1]
        if setting in SETTINGS:
            found[f"PIP_{setting.upper().replace('-', '_')}"] = value.strip("'\"").replace("\\n", " ").strip()
    return found


def _volume() -> str | None:
    """Not its `CreatedAt`: the engine reads that off the folder, so it changes with every file made in it."""
    answer = ask(["docker", "volume", "inspect", "-f", '{{index .Labels "muster.id"}}', pins.ENV_VOLUME])
    return answer.out if answer.code == 0 else None


def _stamp(paths: Paths) -> Path:
    return paths.cache / "env.json"


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _tar(paths: Paths) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (SCRIPT, LOCK):
            archive.add(paths.root / name, name)
    return buffer.getvalue()
