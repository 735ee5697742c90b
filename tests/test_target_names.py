"""Code outside infra/targets never names a target: differences between targets belong to the target itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from infra.targets.registry import targets

ROOT = Path(__file__).parents[1]
ROOMS = ("cluster", "slurm", "bootstrap", "infra", "muster", "trainer", "simulator", "k8s", "setup", "release")
# Files in which the name of a target has another meaning: the step that writes /etc/hosts, and the hosts of ranks.
OTHER_MEANINGS = {
    "hosts": {
        "bootstrap/facts/parse.py",
        "bootstrap/steps/hosts.py",
        "simulator/calibrate/profile_file.py",
        "simulator/report/measured.py",
        "trainer/api.py",
        "trainer/life/failure.py",
        "trainer/life/outcome.py",
        "trainer/life/slow_link.py",
        "trainer/loop/corruptions.py",
        "trainer/loop/steps.py",
        "trainer/parallel/pattern_hook.py",
        "trainer/parallel/mesh.py",
        "trainer/replay/corruption.py",
        "trainer/report/page.py",
        "trainer/report/summary.py",
    },
}
FILES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if not path.is_relative_to(ROOT / "infra" / "targets")
]


def test_no_target_is_named() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in FILES
        for line, text, name in _mentions(path.read_text(encoding="utf-8"))
        if str(path.relative_to(ROOT)) not in OTHER_MEANINGS.get(name, ())
    ]
    assert named == [], "ask the target through infra.targets.target instead of naming it"


def test_every_other_meaning_is_needed() -> None:
    for name, files in OTHER_MEANINGS.items():
        unused = [file for file in files if name not in {word for _, _, word in _mentions((ROOT / file).read_text())}]
        assert unused == [], f"remove these files from the other meanings of '{name}'"


def _mentions(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, text and name where code imports a target's package or uses its name as a value or attribute.

    The name is empty for imports: a package has no other meaning.
    """
    if not re.search(rf"\b({'|'.join(targets())})\b", source):
        return
    tree = ast.parse(source)
    package = re.compile(rf"infra\.targets\.({'|'.join(targets())})\b")
    # The default stack has the same name as the target that it uses.
    default_stack = [node.value for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_default_stack(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and package.match(f"{node.module}."):
            yield node.lineno, node.module or "", ""
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if package.match(alias.name))
        elif isinstance(node, ast.Constant) and node.value in targets() and node not in default_stack:
            yield node.lineno, repr(node.value), str(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in targets():
            yield node.lineno, f".{node.attr}", node.attr


def _is_default_stack(node: ast.Assign) -> bool:
    return [target.id for target in node.targets if isinstance(target, ast.Name)] == ["DEFAULT_STACK"]
