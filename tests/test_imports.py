"""Import direction: which rooms may import which, and which room may import a heavy library; read from the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.statements import walk_statements

ROOT = Path(__file__).parents[1]
ROOMS = (
    *("cluster", "slurm", "bootstrap", "infra", "muster", "trainer", "simulator"),
    *("k8s", "setup", "benchmarks", "policy", "release"),
)

# The rooms that each room may import; the longest matching prefix of a module applies. A module may always import its
# own package.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "cluster": (),
    "slurm": ("cluster",),
    "bootstrap": ("cluster", "slurm"),
    "infra": ("cluster", "slurm", "bootstrap"),
    # The command line also starts the simulator and the trainer, and checks settings for Kubernetes, each in one file.
    "muster": ("cluster", "slurm", "bootstrap", "infra", "k8s"),
    "muster.programs": ("muster", "simulator.__main__"),
    "muster.commands.train": ("infra", "trainer.__main__", "trainer.config"),
    "muster.commands.kubernetes": ("muster", "infra", "k8s", "trainer.config"),
    # Pods run the trainer's own image, which has nothing of this room.
    "k8s": (),
    "trainer": (),
    "simulator": (
        *("cluster", "infra.targets", "trainer.config", "trainer.models.shape", "trainer.table"),
        *("trainer.optimizers.groups", "trainer.optimizers.sizes", "trainer.state_formats"),
    ),
    # The schedules of all-reduces need no torch.
    "simulator.collectives.patterns": (
        *("simulator", "trainer.collectives.schedule", "trainer.collectives.ring", "trainer.collectives.double_tree"),
        *("trainer.collectives.halving_doubling", "trainer.collectives.hierarchical"),
    ),
    "simulator.emulate": ("simulator", "trainer"),
    "simulator.calibrate": ("simulator", "trainer"),
    "simulator.report": ("simulator", "trainer.config", "trainer.report"),
    "simulator.forecast": (
        *("simulator", "cluster", "trainer.config", "trainer.models.shape", "trainer.table"),
        "trainer.auto.choose",
    ),
    "setup": (),
    # The policy pack runs in a separate environment.
    "policy": (),
    # Lists what the other rooms download.
    "release": ("cluster", "bootstrap", "setup"),
    "benchmarks": ROOMS,
}
# The rooms that may import each library.
HOLDERS: dict[str, tuple[str, ...]] = {
    # The instances of a rehearsal are containers.
    "docker": ("infra.targets.local", "infra.targets.aws.rehearse"),
    "moto": ("infra.targets.aws.rehearse",),
    "azure": ("infra.targets.azure",),
    "nebius": ("infra.targets.nebius",),
    "paramiko": ("bootstrap.transport",),
    "torch": ("trainer", "benchmarks", "simulator.emulate", "simulator.calibrate"),
    "boto3": ("infra.targets.aws", "trainer.data.remote"),
    "botocore": ("infra.targets.aws", "trainer.data.remote"),
    "pulumi_aws": ("infra.targets.aws",),
}

# The simulator's folders from the ground up: each may import modules of simulator/ itself and folders of earlier lines.
# Folders of one line do not know each other.
SIMULATOR_FLOORS = (
    ("hardware", "calibrate"),
    ("collectives", "memory", "whole_run"),
    ("step",),
    ("rows", "machines"),
    ("fit", "search", "emulate", "report"),
    ("forecast",),
    ("commands",),
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))}


# One test for all modules: pytest takes longer for a test than ast for a file.
def test_rooms_import_only_lower_rooms() -> None:
    wrong = []
    for module in MODULES:
        own = next(prefix for prefix in sorted(MAY_IMPORT, key=len, reverse=True) if _below(module, prefix))
        allowed = (own, *MAY_IMPORT[own])
        ours = [name for name in _imports(module) if name.partition(".")[0] in ROOMS]
        forbidden = [name for name in ours if not any(_below(name, prefix) for prefix in allowed)]
        wrong += [f"{module} imports {name}, but may import only {', '.join(allowed)}" for name in forbidden]
    assert wrong == []


def test_heavy_libraries_stay_in_their_rooms() -> None:
    wrong = []
    for module in MODULES:
        libraries = {name.partition(".")[0] for name in _imports(module)} & set(HOLDERS)
        forbidden = [name for name in libraries if not any(_below(module, holder) for holder in HOLDERS[name])]
        wrong += [f"{module} imports {name}, which belongs to {', '.join(HOLDERS[name])}" for name in forbidden]
    assert wrong == []


def test_simulator_folders_import_only_lower_ones() -> None:
    floors = {folder: floor for floor, folders in enumerate(SIMULATOR_FLOORS, start=1) for folder in folders}
    assert set(floors) == {path.parent.name for path in (ROOT / "simulator").glob("*/__init__.py")}
    wrong = []
    for module in (name for name in MODULES if _below(name, "simulator")):
        folder = _simulator_folder(module)
        below = {lower for lower in floors if floors[lower] < floors.get(folder, 0)} | {folder, ""}
        names = {name for name in _imports(module) if _below(name, "simulator")}
        wrong += [f"{module} -> {name}" for name in sorted(names) if _simulator_folder(name) not in below]
    assert wrong == []


def _simulator_folder(module: str) -> str:
    """Return the folder of a module of the simulator; empty for modules of simulator/ itself."""
    folder = ".".join(module.split(".")[1:2])
    return folder if (ROOT / "simulator" / folder / "__init__.py").is_file() and folder else ""


def _below(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules that a file imports anywhere; `from a import b` is a.b if that is a module."""
    return tuple(_list_imports(module))


def _list_imports(module: str) -> Iterator[str]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in walk_statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            for alias in node.names:
                longer = f"{base}.{alias.name}"
                yield longer if longer in MODULES else base


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])
