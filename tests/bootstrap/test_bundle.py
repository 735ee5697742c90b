"""Bundles: code that nodes run imports only code that the nodes have."""

from __future__ import annotations

import ast
import io
import tarfile
from pathlib import Path

import pytest

from bootstrap.bundle import Bundle, pack_node, pack_shared

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {"bootstrap", "cluster", "infra", "k8s", "muster", "setup", "simulator", "slurm", "trainer"}


def read_sources(bundle: Bundle) -> dict[str, str]:
    """Return the text of each Python file in a bundle, by path."""
    with tarfile.open(fileobj=io.BytesIO(bundle.archive)) as tar:
        names = [name for name in tar.getnames() if name.endswith(".py")]
        return {name: tar.extractfile(name).read().decode() for name in names}


def list_imports(source: str) -> set[str]:
    """Return the modules that a file imports, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return modules


@pytest.mark.parametrize(
    "bundle", [pack_shared(ROOT, "env"), pack_node(ROOT, ROOT / "none", {})], ids=["shared", "node"]
)
def test_nodes_have_what_their_code_imports(bundle: Bundle) -> None:
    sources = read_sources(bundle)
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in sources}
    packages = {module.rpartition(".")[0] for module in modules}
    missing = {
        (name, module)
        for name, source in sources.items()
        for module in list_imports(source)
        if module.partition(".")[0] in ROOMS and module not in modules | packages
    }
    assert missing == set()
