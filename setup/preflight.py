"""Every reason why setup cannot work on this machine, found before anything is started."""

from dataclasses import dataclass

from setup import pins
from setup.facts import Disk, Facts

MACHINES = ("x86_64", "aarch64")
# A machine sold with 4 GB reports a little less.
MEMORY_MB = 3500
# Where each phase's work ends up, and how much room it takes at its fullest, in GB.
ROOM = {
    "apt": ("system", 1),
    "venv": ("repository", 1),
    "pulumi": ("cache", 1),
    "image": ("engine", 2),
    "env": ("engine", 9),
}
BUILD_ROOM = 4
NEEDED_FROM = {
    "apt": "the machine's apt mirror",
    "python": "the Python package index",
    "go": "the Go module proxy",
}


@dataclass(frozen=True)
class Problem:
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n    fix: {self.fix}"


def problems(facts: Facts) -> list[Problem]:
    if facts.system != "Linux":
        return [
            Problem(
                f"this is {facts.system}; the nodes need a Linux kernel",
                "run it on a Linux machine or in a Linux virtual machine",
            )
        ]
    return [*_machine(facts), *_engine(facts), *_lacking(facts), *_disks(facts), *_network(facts)]


def _machine(facts: Facts) -> list[Problem]:
    found = []
    if facts.machine not in MACHINES:
        found.append(
            Problem(f"the processor is {facts.machine}; supported are {', '.join(MACHINES)}", "run it on one of those")
        )
    if facts.memory_mb < MEMORY_MB:
        what = f"the machine has {facts.memory_mb} MB of memory; a cluster of 4 nodes needs {MEMORY_MB} MB"
        found.append(Problem(what, "give the machine at least 4 GB"))
    return found


def _engine(facts: Facts) -> list[Problem]:
    if not facts.uses_engine:
        return []
    engine = facts.engine
    absent = engine.state == "absent"
    rules = (
        (
            engine.state == "denied",
            "you may not use the Docker engine (permission denied on its socket)",
            'run `sudo usermod -aG docker "$USER"` and log in again, or run it as root',
        ),
        (
            engine.state == "unreachable",
            engine.detail,
            "start that engine, or `unset DOCKER_HOST` to use the one of this machine",
        ),
        (
            engine.state == "remote",
            f"the Docker engine is not asked through a unix socket of this machine ({engine.detail}): "
            "nodes of an engine elsewhere cannot be reached from here",
            "use this machine's own engine: `unset DOCKER_HOST`, `docker context use default`",
        ),
        (
            engine.state == "stopped" and not facts.root,
            "the Docker engine is not running and you are not root",
            "run `sudo systemctl start docker`, or run it as root",
        ),
        (
            absent and not facts.debian,
            f"there is no Docker engine, and setup installs one only on Debian and Ubuntu, not on {facts.distribution}",
            "install Docker Engine with your package manager, start it, and run this again",
        ),
        (
            absent and facts.debian and not facts.root,
            "there is no Docker engine and you are not root, so setup cannot install one",
            "run it as root, or install Docker (`sudo apt-get install docker.io`) and join the group `docker`",
        ),
        (
            engine.rootless,
            "the Docker engine is rootless: its containers cannot be reached from here, nor have cgroups of their own",
            "use the machine's own engine: `unset DOCKER_HOST`, `docker context use default`",
        ),
        (
            engine.desktop,
            "the engine is Docker Desktop, a virtual machine: its containers cannot be reached from here",
            "install Docker Engine beside it and run `docker context use default`",
        ),
    )
    return [Problem(what, fix) for applies, what, fix in rules if applies]


def _lacking(facts: Facts) -> list[Problem]:
    if facts.can_install:
        return []
    found = []
    if "ensurepip" in facts.lacking and "venv" in facts.missing:
        what = f"Python {facts.python} lacks ensurepip, so no virtual environment can be made"
        found.append(Problem(what, f"install it, for example `sudo apt-get install python{facts.python}-venv`"))
    if "go" in facts.lacking and facts.builds_pulumi:
        what = f"Pulumi {pins.PULUMI} is not installed, cannot be downloaded, and cannot be built without Go"
        versions = f"{pins.PULUMI} or newer, below {pins.PULUMI_BELOW}"
        fix = f"install Pulumi {versions}, or Go (`sudo apt-get install golang-go`)"
        found.append(Problem(what, fix))
    if facts.reach.get("base") is False and not (facts.root and "debootstrap" not in facts.lacking):
        what = (
            f"{pins.OFFICIAL_BASE} cannot be pulled, and debootstrap, the other way, needs root and must be installed"
        )
        found.append(
            Problem(
                what,
                f"run it as root, or get the image by other means: `docker load`, then tag it {pins.OFFICIAL_BASE}",
            )
        )
    return found


def _disks(facts: Facts) -> list[Problem]:
    shares: dict[int, list[tuple[Disk, str, int]]] = {}
    for phase, (place, usual) in ROOM.items():
        if phase in facts.missing and place in facts.disks:
            size = BUILD_ROOM if phase == "pulumi" and facts.builds_pulumi else usual
            shares.setdefault(facts.disks[place].device, []).append((facts.disks[place], phase, size))
    return [problem for share in shares.values() if (problem := _disk(share))]


def _disk(share: list[tuple[Disk, str, int]]) -> Problem | None:
    disk = min((disk for disk, _, _ in share), key=lambda disk: disk.free_gb)
    need = sum(size for _, _, size in share)
    if disk.free_gb >= need:
        return None
    parts = ", ".join(f"{phase} {size}" for _, phase, size in share)
    places = ", ".join(sorted({disk.path for disk, _, _ in share}))
    what = f"the disk of {places} has {disk.free_gb:.1f} GB free; setup needs {need} GB there ({parts})"
    return Problem(what, "free some, or set MUSTER_CACHE (and Docker's data-root) to a larger disk")


def _network(facts: Facts) -> list[Problem]:
    found = []
    for source, name in NEEDED_FROM.items():
        if facts.reach.get(source) is False:
            what = f"{name} cannot be reached, and something must be downloaded from it"
            found.append(
                Problem(what, "check the network and the proxy settings (http_proxy, https_proxy), then run this again")
            )
    return found
