"""Reads the facts that preflight decides on. Nothing goes over the network unless something must be downloaded."""

import os
import platform
import sys
import tempfile
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setup import apt, apt_sources, base, engine, env, image, pulumi, pulumi_go, pulumi_release, venv
from setup.distribution import Distribution, distribution
from setup.facts import Disk, Facts
from setup.paths import Paths
from setup.run import ask

PROBE_S = 20.0
GB = 1e9


def gather(paths: Paths, phases: Collection[str], *, only_look: bool) -> Facts:
    system, machine = platform.system(), platform.machine()
    here = distribution()
    found = engine.look()
    lacking = apt.lacking()
    missing = _missing(paths, found, phases)
    facts = Facts(
        system=system,
        machine=machine,
        root=os.geteuid() == 0,
        debian=here.debian_like,
        distribution=here.title,
        python=f"{sys.version_info.major}.{sys.version_info.minor}",
        memory_mb=_memory_mb(),
        engine=found,
        uses_engine=not {"docker", "image", "env"}.isdisjoint(phases),
        missing=missing,
        unknown=_unknown(found) & frozenset(phases),
        lacking=lacking,
        disks=_disks(paths, found) if missing else {},
    )
    return _with_reach(facts, paths, here, base.offered if only_look else lambda: base.pull(Path(os.devnull)))


def _unknown(found: engine.Engine) -> frozenset[str]:
    """An engine that is installed but stopped may well hold image and environment: they are looked at once it runs."""
    return frozenset({"image", "env"}) if found.state in ("stopped", "denied", "unreachable", "remote") else frozenset()


def _missing(paths: Paths, found: engine.Engine, phases: Collection[str]) -> frozenset[str]:
    unknown, running = _unknown(found), found.state == "running"
    checks: dict[str, Callable[[], bool]] = {
        "venv": lambda: venv.cached(paths),
        "pulumi": lambda: pulumi.cached(paths),
        "docker": lambda: running,
        "image": lambda: "image" in unknown or (running and image.cached(paths)),
        "env": lambda: "env" in unknown or (running and env.cached(paths)),
    }
    return frozenset(phase for phase in phases if phase in checks and not checks[phase]())


def _with_reach(facts: Facts, paths: Paths, here: Distribution, base_there: Callable[[], bool]) -> Facts:
    """Ask each source by its own tool, all at once, so that each one's mirrors and proxies count."""
    first: dict[str, Callable[[], bool]] = {}
    if "pulumi" in facts.missing and facts.machine in pulumi_release.ARCHITECTURES:
        first["release"] = lambda: pulumi_release.reachable(facts.machine)
    if {"venv", "env"} & facts.missing and "ensurepip" not in facts.lacking:
        first["python"] = lambda: _python_reachable(paths)
    if "image" in facts.missing and facts.engine.state == "running" and not facts.can_install:
        first["base"] = base_there
    facts = facts.with_reach(_all(first))
    second: dict[str, Callable[[], bool]] = {}
    go = pulumi_go.find()
    if facts.builds_pulumi and go and facts.machine in pulumi_go.ARCHITECTURES:
        second["go"] = lambda: pulumi_go.reachable(go, facts.machine, paths.scratch)
    if apt.packages(facts):
        second["apt"] = lambda: _apt_reachable(here)
    return facts.with_reach(_all(second))


def _all(probes: dict[str, Callable[[], bool]]) -> dict[str, bool]:
    if not probes:
        return {}
    with ThreadPoolExecutor(len(probes)) as pool:
        asked = {name: pool.submit(probe) for name, probe in probes.items()}
        return {name: answer.result() for name, answer in asked.items()}


def _python_reachable(paths: Paths) -> bool:
    """pip is asked for one small package; where there is no pip yet, the answer comes from installing it."""
    if ask([sys.executable, "-c", "import pip"]).code:
        return True
    pin = (paths.root / "requirements.lock").read_text().split()[0]
    with tempfile.TemporaryDirectory() as scratch:
        options = ["--quiet", "--no-deps", "--no-cache-dir", "--retries", "1", "--timeout", "8", "--dest", scratch]
        return ask([sys.executable, "-m", "pip", "download", *options, pin], timeout=PROBE_S).code == 0


def _apt_reachable(here: Distribution) -> bool:
    source = next((source for source in apt_sources.read() if source.suite == here.codename), None)
    if source is None:
        return True
    with tempfile.TemporaryDirectory() as scratch:
        options = ["-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=8", "-o", "Acquire::https::Timeout=8"]
        release = f"{source.uri}/dists/{source.suite}/InRelease"
        argv = ["/usr/lib/apt/apt-helper", *options, "download-file", release, f"{scratch}/InRelease"]
        return ask(argv, timeout=PROBE_S).code == 0


def _memory_mb() -> int:
    try:
        line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    except FileNotFoundError:
        return 0
    return int(line.split()[1]) // 1024


def _disks(paths: Paths, found: engine.Engine) -> dict[str, Disk]:
    places = {"system": Path("/"), "repository": paths.root, "cache": paths.cache, "engine": found.data}
    return {place: _disk(path) for place, path in places.items()}


def _disk(path: Path) -> Disk:
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    usage = os.statvfs(there)
    return Disk(str(path), there.stat().st_dev, usage.f_bavail * usage.f_frsize / GB)
