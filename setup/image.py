"""The node image: built from setup/image on a Debian base, and rebuilt only when its sources change.

The base is the official Debian image, by its digest, if it can be pulled, else a minimal Debian from debootstrap.
"""

import hashlib
import io
import json
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from setup import apt_sources, pins
from setup.facts import Facts, read_distribution
from setup.paths import Paths, scratch_directory
from setup.run import SetupError, ask, run

CERTIFICATES = Path("/usr/local/share/ca-certificates")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
BASE_KINDS = ("official", "debootstrap")
BASE_LABEL = "muster.base"
PULL_TIMEOUT_S = 90.0
OFFER_TIMEOUT_S = 15.0


def is_current(paths: Paths) -> bool:
    """Return whether the image was built from these sources, on either base."""
    built = read_label(pins.NODE_IMAGE, "muster.hash")
    return built in {digest(context_files(paths), kind) for kind in BASE_KINDS}


def build(paths: Paths, _: Facts, log: Path) -> None:
    """Build the node image and remove the one it replaces."""
    kind = ensure_base(paths, log)
    context = context_files(paths)
    build_layer(pins.NODE_IMAGE, pins.BASE_IMAGE, context, digest(context, kind), log)


def build_layer(image: str, base: str, context: dict[str, bytes], content_hash: str, log: Path) -> None:
    """Build an image on a base image from a context, label it with its hash, and remove the image that it replaces."""
    labels = ["--label", "muster.cache=image", "--label", f"muster.hash={content_hash}"]
    proxies = [flag for name in PROXIES if name in os.environ for flag in ("--build-arg", name)]
    find_id = ["docker", "image", "inspect", "-f", "{{.Id}}", image]
    replaced = ask(find_id).out
    with tempfile.TemporaryFile() as archive:
        archive.write(pack_context(context))
        archive.seek(0)
        # The legacy builder needs no buildx plugin, and the host's network works even if the bridge has no route out.
        options = ["--force-rm", "--network", "host", "--build-arg", f"BASE={base}", *labels, *proxies]
        run(
            ["docker", "build", *options, "-t", image, "-"],
            log,
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            stdin=archive,
        )
    if replaced and replaced != ask(find_id).out:
        # This fails, as it should, while a node still runs on the old image.
        ask(["docker", "image", "rm", replaced])


def read_label(image: str, name: str) -> str | None:
    """Return a label of an image, or None if there is no such image or label."""
    answer = ask(["docker", "image", "inspect", "-f", "{{json .Config.Labels}}", image])
    if answer.code:
        if "no such image" in answer.err.lower():
            return None
        raise SetupError(f"the Docker engine cannot inspect the image {image}: {answer.err}")
    value = (json.loads(answer.out) or {}).get(name)
    return str(value) if value else None


def context_files(paths: Paths, certificates: Path = CERTIFICATES) -> dict[str, bytes]:
    """Return the build context: setup/image and the certificate authorities that this machine additionally trusts."""
    sources = paths.root / "setup" / "image"
    files = {str(path.relative_to(sources)): path.read_bytes() for path in sources.rglob("*") if path.is_file()}
    files |= {f"ca-certificates/{path.name}": path.read_bytes() for path in certificates.glob("*.crt")}
    return dict(sorted(files.items()))


def digest(context: dict[str, bytes], kind: str) -> str:
    """Return a digest over everything that goes into the image."""
    # A base from debootstrap does not depend on the pinned digest.
    whole = hashlib.sha256((f"{kind} {pins.OFFICIAL_BASE}" if kind == "official" else kind).encode())
    for name, content in context.items():
        whole.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return whole.hexdigest()


def pack_context(context: dict[str, bytes]) -> bytes:
    """Return the build context as a tar archive whose owners and modes do not depend on the checkout."""
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


def ensure_base(paths: Paths, log: Path) -> str:
    """Return the kind of the base image; pull or build the image first if there is none."""
    inspected = ask(
        ["docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{BASE_LABEL}"}}}}', pins.BASE_IMAGE]
    )
    if inspected.code == 0 and inspected.out == "debootstrap":
        return "debootstrap"
    if _is_image(pins.OFFICIAL_BASE) or _pull(log):
        run(["docker", "tag", pins.OFFICIAL_BASE, pins.BASE_IMAGE], log)
        return "official"
    if inspected.code == 0:
        # Loaded from a file, or of an earlier pin.
        _tell(f"{pins.OFFICIAL_BASE} cannot be pulled; using the present {pins.BASE_IMAGE}", log)
        return "official"
    _tell(f"{pins.OFFICIAL_BASE} cannot be pulled; creating the base with debootstrap instead", log)
    with scratch_directory(paths, "base") as scratch:
        create_debian(scratch / "root", log)
        _import_base(scratch / "root", log)
    return "debootstrap"


def can_pull_base() -> bool:
    """Return whether a base exists here or the official one can be pulled, without pulling it."""
    return _has_base() or _manifest_answers()


def pull_base(log: Path) -> bool:
    """Pull the official base if there is no base; return whether there is one now."""
    return _has_base() or _pull(log)


def _pull(log: Path) -> bool:
    try:
        run(["docker", "pull", pins.OFFICIAL_BASE], log, timeout=PULL_TIMEOUT_S)
    except SetupError:
        return False
    return True


def _has_base() -> bool:
    # An image that was loaded from a file has a tag but no digest, so it counts under the name of our base.
    return any(_is_image(name) for name in (pins.OFFICIAL_BASE, pins.BASE_IMAGE))


def _is_image(name: str) -> bool:
    return ask(["docker", "image", "inspect", name]).code == 0


def _tell(text: str, log: Path) -> None:
    print(f"image: {text}", flush=True)
    with log.open("a") as note:
        note.write(f"{text}\n")


def _manifest_answers() -> bool:
    return ask(["docker", "manifest", "inspect", pins.OFFICIAL_BASE], timeout=OFFER_TIMEOUT_S).code == 0


def create_debian(root: Path, log: Path) -> None:
    """Create a minimal Debian, from this machine's mirrors if it runs Debian, else from debootstrap's default."""
    if shutil.which("debootstrap") is None:
        raise SetupError(f"{pins.OFFICIAL_BASE} cannot be pulled and debootstrap is not installed", log)
    here = read_distribution()
    mirrors = None
    if here.name == "debian":
        mirrors = apt_sources.find_mirrors(apt_sources.read_sources(), here.codename, pins.SUITE)
    keyring = ["--keyring", mirrors.main.keyring] if mirrors and mirrors.main.keyring else []
    mirror = [mirrors.main.uri] if mirrors else []
    argv = ["debootstrap", "--variant=minbase", "--include=ca-certificates", *keyring, pins.SUITE, str(root), *mirror]
    # debootstrap runs in its own mount namespace, so that its mounts disappear with it, however it ends.
    run(["unshare", "--mount", *argv], log)
    if mirrors:
        (root / "etc/apt/sources.list").unlink(missing_ok=True)
        (root / "etc/apt/sources.list.d/debian.sources").write_text(apt_sources.render_sources(mirrors))
        for source in filter(None, (mirrors.main, mirrors.updates, mirrors.security)):
            _copy_keyring(source.keyring, root)


def _import_base(root: Path, log: Path) -> None:
    labels = f'--change "LABEL {BASE_LABEL}=debootstrap" --change "LABEL muster.cache=image"'
    pipe = f'tar -C "$0" --numeric-owner -c . | docker import {labels} - "$1"'
    run(["bash", "-o", "pipefail", "-c", pipe, root, pins.BASE_IMAGE], log)


def _copy_keyring(keyring: str | None, root: Path) -> None:
    """Copy the keyring of a mirror that is not signed with Debian's key to the nodes' root."""
    if keyring and not (root / keyring.lstrip("/")).exists():
        target = root / keyring.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(keyring, target)
