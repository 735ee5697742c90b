"""Read the facts that preflight decides on. Nothing uses the network unless something has to be downloaded."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup import apt, apt_sources, engine, env, image, pulumi, pulumi_go, slurm_image, venv
from setup.facts import Disk, Distribution, Engine, Facts, read_distribution
from setup.paths import Paths
from setup.run import ask

PROBE_TIMEOUT_S = 20.0
GB = 1e9


def gather(paths: Paths, phases: Collection[str], *, only_look: bool) -> Facts:
    """Return the facts about this machine that the phases need; with `only_look`, download nothing."""
    distribution = read_distribution()
    docker = engine.inspect_engine()
    missing = _find_missing(paths, docker, phases)
    facts = Facts(
        system=platform.system(),
        machine=platform.machine(),
        root=os.geteuid() == 0,
        debian=distribution.debian_like,
        distribution=distribution.title,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        memory_mb=_memory_mb(),
        engine=docker,
        uses_engine=not {"docker", "image", "env", "slurm"}.isdisjoint(phases),
        missing=missing,
        unknown=_undecidable(docker) & frozenset(phases),
        lacking=apt.find_lacking(),
        new_go="pulumi" in missing and pulumi_go.is_new_enough(pulumi_go.find_go()),
        disks=_read_disks(paths, docker) if missing else {},
    )
    base_answers = image.can_pull_base if only_look else lambda: image.pull_base(Path(os.devnull))
    return _probe_sources(facts, paths, distribution, base_answers)


def _undecidable(docker: Engine) -> frozenset[str]:
    """Return the phases that cannot be checked yet: a stopped engine may already have the image and the environment."""
    stopped = docker.state in ("stopped", "denied", "unreachable", "remote")
    return frozenset({"image", "env", "slurm"}) if stopped else frozenset()


def _find_missing(paths: Paths, docker: Engine, phases: Collection[str]) -> frozenset[str]:
    undecidable, running = _undecidable(docker), docker.state == "running"
    checks: dict[str, Callable[[], bool]] = {
        "venv": lambda: venv.is_current(paths),
        "pulumi": lambda: pulumi.is_installed(paths),
        "docker": lambda: running,
        "image": lambda: "image" in undecidable or (running and image.is_current(paths)),
        "slurm": lambda: "slurm" in undecidable or (running and slurm_image.is_current(paths)),
        "env": lambda: "env" in undecidable or (running and env.is_filled(paths)),
    }
    return frozenset(phase for phase in phases if phase in checks and not checks[phase]())


def _probe_sources(facts: Facts, paths: Paths, here: Distribution, base_answers: Callable[[], bool]) -> Facts:
    """Probe every needed download source with the tool that will use it, and so with its mirrors and proxies."""
    first: dict[str, Callable[[], bool]] = {}
    if "pulumi" in facts.missing and facts.machine in pulumi.ARCHITECTURES:
        first["release"] = lambda: pulumi.is_release_reachable(facts.machine)
    if {"venv", "env"} & facts.missing and "ensurepip" not in facts.lacking:
        first["python"] = lambda: _is_package_index_reachable(paths)
    if "image" in facts.missing and facts.engine.state == "running" and not facts.can_install:
        first["base"] = base_answers
    facts = facts.with_reach(_run_probes(first))
    second: dict[str, Callable[[], bool]] = {}
    go = pulumi_go.find_go()
    if facts.builds_pulumi and go and facts.machine in pulumi_go.ARCHITECTURES:
        second["go"] = lambda: pulumi_go.is_proxy_reachable(go, facts.machine, paths.scratch)
    if apt.packages(facts):
        second["apt"] = lambda: _is_apt_mirror_reachable(here)
    return facts.with_reach(_run_probes(second))


def _run_probes(probes: dict[str, Callable[[], bool]]) -> dict[str, bool]:
    if not probes:
        return {}
    with ThreadPoolExecutor(len(probes)) as pool:
        futures = {name: pool.submit(probe) for name, probe in probes.items()}
        return {name: future.result() for name, future in futures.items()}


def _is_package_index_reachable(paths: Paths) -> bool:
    """Return whether pip can download a small package; True without pip, because the venv phase will show it."""
    if ask([sys.executable, "-c", "import pip"]).code:
        return True
    pin = (paths.root / "requirements.lock").read_text().split()[0]
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--retries", "1", "--timeout", "8", "--dest", scratch]
        return ask([sys.executable, "-m", "pip", "download", *options, pin], timeout=PROBE_TIMEOUT_S).code == 0


def _is_apt_mirror_reachable(here: Distribution) -> bool:
    source = next((source for source in apt_sources.read_sources() if source.suite == here.codename), None)
    if source is None:
        return True
    with tempfile.TemporaryDirectory() as scratch:
        options = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=8", "-o", "Acquire::https::Timeout=8"]
        release = f"{source.uri}/dists/{source.suite}/InRelease"
        argv = ["/usr/lib/apt/apt-helper", *options, "download-file", release, f"{scratch}/InRelease"]
        return ask(argv, timeout=PROBE_TIMEOUT_S).code == 0


def _memory_mb() -> int:
    try:
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    except FileNotFoundError:
        return 0
    return int(line.split()[1]) // 1024


def _read_disks(paths: Paths, docker: Engine) -> dict[str, Disk]:
    places = {"system": Path("/"), "repository": paths.root, "cache": paths.cache, "engine": docker.data}
    return {place: _read_disk(path) for place, path in places.items()}


def _read_disk(path: Path) -> Disk:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = os.statvfs(existing)
    return Disk(str(path), existing.stat().st_dev, usage.f_bavail * usage.f_frsize / GB)
