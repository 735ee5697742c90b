"""The nodes' training environment, built once in a Docker volume that every new cluster uses."""

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
FILL_TIMEOUT_S = 60 * 60.0
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host")


def key(paths: Paths) -> str:
    """Return the name of the environment's folder on the volume, a digest of its lock file."""
    return hashlib.sha256((paths.root / LOCK).read_bytes()).hexdigest()[:16]


def is_filled(paths: Paths) -> bool:
    """Return whether the volume was filled from this lock file; a volume that was deleted and recreated was not."""
    volume = _volume_id()
    return volume is not None and _read_stamp(paths) == {"key": key(paths), "volume": volume}


def fill(paths: Paths, _: Facts, log: Path) -> None:
    """Install the training environment on the volume, in a container of the node image."""
    if _volume_id() is None:
        labels = ["--label", "muster.cache=env", "--label", f"muster.id={uuid4().hex}"]
        run(["docker", "volume", "create", *labels, pins.ENV_VOLUME], log)
    variables = {name: os.environ[name] for name in PROXIES if name in os.environ} | pip_settings(paths)
    # Pass only the names: the values may hold passwords, and every user of the machine can read a command line.
    flags = [flag for name in variables for flag in ("-e", name)]
    script = f"tar -C /tmp -x && bash /tmp/{SCRIPT} /tmp/{LOCK} /shared/env/{key(paths)}"
    with tempfile.TemporaryFile() as archive:
        archive.write(_pack_sources(paths))
        archive.seek(0)
        # Use the host's network: the bridge may have no route out, and a proxy may listen only on the host.
        argv = ["docker", "run", "--rm", "-i", "--network", "host", "--label", "muster.cache=env", *flags]
        mount = ["-v", f"{pins.ENV_VOLUME}:/shared/env"]
        # `timeout` forwards the signal that ends the client; a shell as the container's first process would ignore it.
        inside = ["timeout", "-k", "5", f"{FILL_TIMEOUT_S:.0f}", "sh", "-euc", script]
        command = [*argv, *mount, pins.NODE_IMAGE, *inside]
        run(command, log, env={**os.environ, **variables}, stdin=archive, timeout=FILL_TIMEOUT_S)
    unfinished = _stamp(paths).with_suffix(".new")
    unfinished.write_text(json.dumps({"key": key(paths), "volume": _volume_id()}))
    unfinished.rename(_stamp(paths))


def pip_settings(paths: Paths) -> dict[str, str]:
    """Return this machine's pip sources as environment variables, so that pip on the nodes uses them too."""
    text = ask([paths.venv / "bin" / "python", "-m", "pip", "config", "list"]).out
    return parse_pip_settings(text)


def parse_pip_settings(text: str) -> dict[str, str]:
    """Return the environment variables for the sources in the output of `pip config list`."""
    variables = {}
    for line in text.splitlines():
        name, _, value = line.partition("=")
        setting = name.rsplit(".", 1)[-1]
        if setting in PIP_SETTINGS:
            variables[f"PIP_{setting.upper().replace('-', '_')}"] = value.strip("'\"").replace("\\n", " ").strip()
    return variables


def _volume_id() -> str | None:
    # `CreatedAt` cannot be used: the engine reads it from the folder, so it changes with every file created there.
    answer = ask(["docker", "volume", "inspect", "-f", '{{index .Labels "muster.id"}}', pins.ENV_VOLUME])
    return answer.out if answer.code == 0 else None


def _stamp(paths: Paths) -> Path:
    return paths.cache / "env.json"


def _read_stamp(paths: Paths) -> object:
    try:
        return json.loads(_stamp(paths).read_text())
    except (OSError, ValueError):
        return None


def _pack_sources(paths: Paths) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in (SCRIPT, LOCK):
            archive.add(paths.root / name, name)
    return buffer.getvalue()
