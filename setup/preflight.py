"""Find every reason why setup cannot work on this machine, before anything is started."""

from dataclasses import dataclass

from setup import pins
from setup.facts import Disk, Facts
from setup.pulumi_go import ARCHITECTURES

MACHINES = ("x86_64", "aarch64")
# A machine with nominally 4 GB reports slightly less.
MIN_MEMORY_MB = 3500
# Where each phase stores its results, and the peak disk space that it needs, in GB.
DISK_GB = {
    "apt": ("system", 1),
    "venv": ("repository", 1),
    "pulumi": ("cache", 1),
    "image": ("engine", 2),
    "env": ("engine", 9),
    "slurm": ("engine", 1),
}
PULUMI_BUILD_GB = 4
SOURCES = {
    "apt": "the machine's apt mirror",
    "python": "the Python package index",
    "go": "the Go module proxy",
}
INSTALL_GO_OR_PULUMI = f"install Go {pins.GO} or newer, or Pulumi {pins.PULUMI} or newer, below {pins.PULUMI_BELOW}"


@dataclass(frozen=True)
class MachineProblem:
    """A reason why setup cannot work here, and how to fix it."""

    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.what}\n    fix: {self.fix}"


def find_problems(facts: Facts) -> list[MachineProblem]:
    """Return all problems at once, each with its fix."""
    if facts.system != "Linux":
        return [
            MachineProblem(
                f"this is {facts.system}; the nodes need a Linux kernel",
                "run it on a Linux machine or in a Linux virtual machine",
            )
        ]
    return [
        *_check_machine(facts),
        *_check_engine(facts),
        *_check_go(facts),
        *_check_tools(facts),
        *_check_disks(facts),
        *_check_network(facts),
    ]


def _check_machine(facts: Facts) -> list[MachineProblem]:
    problems = []
    if facts.machine not in MACHINES:
        problems.append(
            MachineProblem(
                f"the processor is {facts.machine}; supported are {', '.join(MACHINES)}",
                "use a machine with one of those",
            )
        )
    if facts.memory_mb < MIN_MEMORY_MB:
        what = f"the machine has {facts.memory_mb} MB of memory; a cluster of 4 nodes needs {MIN_MEMORY_MB} MB"
        problems.append(MachineProblem(what, "give the machine at least 4 GB"))
    return problems


def _check_engine(facts: Facts) -> list[MachineProblem]:
    if not facts.uses_engine:
        return []
    engine = facts.engine
    absent = engine.state == "absent"
    rules = (
        (
            engine.state == "denied",
            "you are not allowed to use the Docker engine (permission denied on its socket)",
            'run `sudo usermod -aG docker "$USER"` and log in again, or run it as root',
        ),
        (
            engine.state == "unreachable",
            engine.detail,
            "start that engine, or `unset DOCKER_HOST` to use this machine's own",
        ),
        (
            engine.state == "remote",
            f"the Docker client does not use a unix socket of this machine ({engine.detail}): "
            "nodes of a remote engine cannot be reached from here",
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
            "the Docker engine is rootless: its containers are unreachable from here and have no cgroups of their own",
            "use the machine's own engine: `unset DOCKER_HOST`, `docker context use default`",
        ),
        (
            engine.desktop,
            "the engine is Docker Desktop, a virtual machine: its containers cannot be reached from here",
            "install Docker Engine as well and run `docker context use default`",
        ),
    )
    return [MachineProblem(what, fix) for applies, what, fix in rules if applies]


def _lacks_pinned_go(facts: Facts) -> bool:
    return facts.builds_pulumi and facts.machine in MACHINES and facts.machine not in pins.GO_SUMS and not facts.new_go


def _check_go(facts: Facts) -> list[MachineProblem]:
    # Also where setup could install a Go: those of Debian and Ubuntu may be too old, and no newer one is pinned.
    if not _lacks_pinned_go(facts):
        return []
    name = ARCHITECTURES[facts.machine]
    what = (
        f"{name} needs Go >= {pins.GO} or Pulumi {pins.PULUMI} on PATH: Pulumi's release cannot be downloaded, "
        f"and setup has no checksum of Go for {name}"
    )
    return [MachineProblem(what, INSTALL_GO_OR_PULUMI)]


def _check_tools(facts: Facts) -> list[MachineProblem]:
    if facts.can_install:
        return []
    problems = []
    if "ensurepip" in facts.lacking and "venv" in facts.missing:
        what = f"Python {facts.python} lacks ensurepip, so setup cannot create a virtual environment"
        problems.append(
            MachineProblem(what, f"install it, for example `sudo apt-get install python{facts.python}-venv`")
        )
    if "go" in facts.lacking and facts.builds_pulumi and not _lacks_pinned_go(facts):
        what = (
            f"Pulumi {pins.PULUMI} is not installed; its release cannot be downloaded, so it is built, which needs Go"
        )
        problems.append(MachineProblem(what, INSTALL_GO_OR_PULUMI))
    if facts.reach.get("base") is False and not (facts.root and "debootstrap" not in facts.lacking):
        what = (
            f"{pins.OFFICIAL_BASE} cannot be pulled, and the alternative, debootstrap, must be installed and needs root"
        )
        problems.append(
            MachineProblem(
                what,
                f"run it as root, or load the image from a file with `docker load` and tag it {pins.BASE_IMAGE}",
            )
        )
    return problems


def _check_disks(facts: Facts) -> list[MachineProblem]:
    shares: dict[int, list[tuple[Disk, str, int]]] = {}
    for phase, (place, usual) in DISK_GB.items():
        if phase in facts.missing and place in facts.disks:
            size = PULUMI_BUILD_GB if phase == "pulumi" and facts.builds_pulumi else usual
            shares.setdefault(facts.disks[place].device, []).append((facts.disks[place], phase, size))
    return [problem for share in shares.values() if (problem := _check_disk(share))]


def _check_disk(share: list[tuple[Disk, str, int]]) -> MachineProblem | None:
    disk = min((disk for disk, _, _ in share), key=lambda disk: disk.free_gb)
    need = sum(size for _, _, size in share)
    if disk.free_gb >= need:
        return None
    parts = ", ".join(f"{phase} {size}" for _, phase, size in share)
    places = ", ".join(sorted({disk.path for disk, _, _ in share}))
    what = f"the disk of {places} has {disk.free_gb:.1f} GB free; setup needs {need} GB there ({parts})"
    return MachineProblem(what, "free some space, or move MUSTER_CACHE (and Docker's data-root) to a larger disk")


def _check_network(facts: Facts) -> list[MachineProblem]:
    problems = []
    for source, name in SOURCES.items():
        if facts.reach.get(source) is False:
            what = f"{name} cannot be reached, and setup has to download from it"
            problems.append(
                MachineProblem(
                    what, "check the network and the proxy settings (http_proxy, https_proxy), then run this again"
                )
            )
    return problems
