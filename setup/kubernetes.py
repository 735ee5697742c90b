"""The programs of a real Kubernetes cluster, for tests that run one on this machine.

Kubernetes and the controller of JobSet are built from Go modules, whose checksums are in setup/kubernetes. The others
are in packages of Debian or Ubuntu, which are unpacked without being installed, so that no service of theirs starts.
"""

import hashlib
import os
import shutil
from pathlib import Path

from setup import pins
from setup.paths import Paths, exclusive_lock, scratch_directory
from setup.pins import is_at_least
from setup.pulumi_go import environment, find_go
from setup.run import SetupError, ask, run

_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
_UNPACKED_PACKAGES = ("busybox-static", "containernetworking-plugins", "etcd-server")
_VERSION = "k8s.io/component-base/version"
_JOBSET = "sigs.k8s.io/jobset"
_JOBSET_MANIFESTS = ("crd", "rbac", "webhook")
BUILD_TIMEOUT_S = 2 * 60 * 60.0


def locate(paths: Paths) -> Path:
    """Return the folder of the cache: programs in `bin`, packages in `debian`, and JobSet's manifests in `jobset`."""
    return paths.cache / "kubernetes" / f"{pins.KUBERNETES}-{_digest(paths)}"


def install(paths: Paths, log: Path) -> None:
    """Build and unpack the programs, unless they are in the cache; remove those of other versions."""
    target = locate(paths)
    with exclusive_lock(paths.cache / "kubernetes.lock", lambda text: print(f"kubernetes: {text}", flush=True)):
        if target.is_dir():
            return
        if os.geteuid() != 0:
            raise SetupError("only root can update apt's lists of packages, and run the tests: use `sudo`")
        go = find_go()
        if go is None or not is_at_least(ask([go, "version"]).out, pins.KUBERNETES_GO):
            raise SetupError(f"Kubernetes {pins.KUBERNETES} is built with Go {pins.KUBERNETES_GO} or newer: install it")
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise SetupError(f"the packages {', '.join(_UNPACKED_PACKAGES)} are taken from Debian or Ubuntu only")
        with scratch_directory(paths, "kubernetes") as scratch:
            staging = scratch / "staging"
            _unpack_packages(staging / "debian", log)
            _build(paths.root / "setup" / "kubernetes", staging, go, log)
            shutil.rmtree(target.parent, ignore_errors=True)
            target.parent.mkdir(parents=True)
            staging.rename(target)


def _list_builds() -> dict[str, list[str]]:
    """Return the flags of the linker and the packages of all programs for `go build`, by the folder of the module."""
    minor = pins.KUBERNETES.split(".")[1]
    values = {"gitVersion": f"v{pins.KUBERNETES}", "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    flags = " ".join(["-s", "-w", *(f"-X {_VERSION}.{name}={value}" for name, value in values.items())])
    return {
        "cluster": ["-ldflags", flags, *(f"k8s.io/kubernetes/cmd/{name}" for name in _PROGRAMS)],
        "jobset": ["-ldflags", "-s -w", _JOBSET],
    }


def _build(modules: Path, staging: Path, go: str, log: Path) -> None:
    argv = [go, "build", "-v", "-mod=readonly", "-trimpath", "-o", f"{staging / 'bin'}/"]
    for module, arguments in _list_builds().items():
        run(["env", *environment(), *argv, *arguments], log, cwd=modules / module, timeout=BUILD_TIMEOUT_S)
    _copy_manifests(modules / "jobset", staging / "jobset", go)


def _copy_manifests(module: Path, target: Path, go: str) -> None:
    """Copy the manifests of JobSet's definition, role and webhooks, which are in the Go module of its controller."""
    answer = ask(["env", "-C", module, *environment(), go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _JOBSET])
    if answer.code:
        raise SetupError(f"Go cannot find {_JOBSET}: {answer.err or answer.out}")
    for part in _JOBSET_MANIFESTS:
        shutil.copytree(Path(answer.out) / "config/components" / part, target / part)


def _unpack_packages(target: Path, log: Path) -> None:
    target.mkdir(parents=True)
    # apt downloads as a user of its own, which must be able to write to the folder.
    target.chmod(0o777)
    run(["apt-get", "update"], log)
    run(["apt-get", "download", *_UNPACKED_PACKAGES], log, cwd=target)
    target.chmod(0o755)
    for archive in sorted(target.glob("*.deb")):
        run(["dpkg-deb", "--extract", archive, target], log)
        archive.unlink()


def _digest(paths: Paths) -> str:
    """Return a digest of everything that decides what is in the folder."""
    whole = hashlib.sha256(repr((_list_builds(), _JOBSET_MANIFESTS, _UNPACKED_PACKAGES)).encode())
    for path in sorted((paths.root / "setup" / "kubernetes").rglob("*")):
        if path.is_file():
            whole.update(f"\0{path.name}\0".encode() + path.read_bytes())
    return whole.hexdigest()[:12]
