"""The node image: built from setup/image on a Debian base, again only when its sources change."""

import hashlib
import io
import json
import os
import tarfile
import tempfile
from pathlib import Path

from setup import base, pins
from setup.facts import Facts
from setup.paths import Paths
from setup.run import Failed, ask, run

CERTIFICATES = Path("/usr/local/share/ca-certificates")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def cached(paths: Paths) -> bool:
    built = label(pins.NODE_IMAGE, "muster.hash")
    return built in {digest(files(paths), kind) for kind in base.KINDS}


def act(paths: Paths, _: Facts, log: Path) -> None:
    kind = base.ensure(paths, log)
    context = files(paths)
    labels = ["--label", "muster.cache=image", "--label", f"muster.hash={digest(context, kind)}"]
    proxies = [word for name in PROXIES if name in os.environ for word in ("--build-arg", name)]
    old = ask(["docker", "image", "inspect", "-f", "{{.Id}}", pins.NODE_IMAGE]).out
    with tempfile.TemporaryFile() as archive:
        archive.write(tar(context))
        archive.seek(0)
        # The legacy builder works without the buildx plugin; the host's network also where the bridge has no way out.
        options = ["--force-rm", "--network", "host", "--build-arg", f"BASE={pins.BASE_IMAGE}", *labels, *proxies]
        run(
            ["docker", "build", *options, "-t", pins.NODE_IMAGE, "-"],
            log,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            stdin=archive,
        )
    if old:
        # Refused, and rightly, while a node still runs on it.
        ask(["docker", "image", "rm", old])


def label(image: str, name: str) -> str | None:
    answer = ask(["docker", "image", "inspect", "-f", "{{json .Config.Labels}}", image])
    if answer.code:
        if "no such image" in answer.err.lower():
            return None
        raise Failed(f"the Docker engine does not say whether {image} is there: {answer.err}")
    value = (json.loads(answer.out) or {}).get(name)
    return str(value) if value else None


def files(paths: Paths, certificates: Path = CERTIFICATES) -> dict[str, bytes]:
    """The build context: our sources and the certificate authorities this machine trusts beyond the usual ones."""
    sources = paths.root / "setup" / "image"
    found = {str(path.relative_to(sources)): path.read_bytes() for path in sources.rglob("*") if path.is_file()}
    found |= {f"ca-certificates/{path.name}": path.read_bytes() for path in certificates.glob("*.crt")}
    return dict(sorted(found.items()))


def digest(context: dict[str, bytes], kind: str) -> str:
    whole = hashlib.sha256(kind.encode())
    for name, content in context.items():
        whole.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def tar(context: dict[str, bytes]) -> bytes:
    """Owners and modes do not depend on who checked the repository out, and with which umask."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        parents = {str(parent) for name in context for parent in Path(name).parents if str(parent) != "."}
        for name in sorted(parents | {"ca-certificates"}):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for name, content in context.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if name.endswith(".sh") else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
