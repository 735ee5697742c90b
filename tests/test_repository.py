"""Files around the code: workflows with pinned actions, hooks, editor settings, and valid links in the docs."""

from __future__ import annotations

import configparser
import json
import re
from pathlib import Path

import pytest
import yaml

from setup.pins import OFFICIAL_BASE

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text())
FILES = ("test.yml", "nightly.yml")
DOCS = sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))
TARGET_PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "infra" / "targets").glob("*/README.md"))
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", *DOCS, *TARGET_PAGES)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_pinned_by_commit_with_a_version_comment(path: Path) -> None:
    uses = re.findall(r"(?m)^.*\buses: *(.*)$", path.read_text())
    assert uses
    for reference in uses:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", reference), reference


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_are_read_only_and_call_existing_targets(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [name for step in steps for name in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))]
    assert called
    assert set(called) <= set(TARGETS)


def test_quick_tests_run_on_push_and_all_tests_run_nightly() -> None:
    # YAML 1.1 reads the key `on` as true.
    quick, nightly = (yaml.safe_load((ROOT / ".github/workflows" / name).read_text()) for name in FILES)
    assert set(quick[True]) == {"push", "pull_request"}
    assert "schedule" in nightly[True]
    assert "make test-quick" in (ROOT / ".github/workflows" / FILES[0]).read_text()
    assert "make test-nightly" in (ROOT / ".github/workflows" / FILES[1]).read_text()


def test_only_the_nightly_checks_require_the_audit_of_packages() -> None:
    """A push must not fail because a live database does not answer or has a new entry."""
    quick, nightly = ((ROOT / ".github/workflows" / name).read_text() for name in FILES)
    assert "MUSTER_AUDIT" not in quick
    (step,) = [
        step for step in yaml.safe_load(nightly)["jobs"]["part"]["steps"] if "make test-nightly" in step.get("run", "")
    ]
    assert '"MUSTER_AUDIT=$AUDIT" make test-nightly' in step["run"]
    assert step["env"]["AUDIT"] == "${{ matrix.part == 'checks' && 'required' || '' }}"


def test_pre_commit_hooks_select_stack_files() -> None:
    exported = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    local = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["id"] for hook in exported] == ["muster-check"]
    assert [hook["id"] for hook in local] == ["ruff-check", "ruff-format", "shellcheck", "muster-check"]
    for hook in (exported[0], local[-1]):
        assert hook["entry"].endswith("muster check")
        assert re.search(hook["files"], "stacks/Pulumi.local.yaml")
        assert not re.search(hook["files"], "Pulumi.yaml")


def test_devcontainer_runs_set_up_on_the_pinned_base() -> None:
    text = (ROOT / ".devcontainer" / "devcontainer.json").read_text()
    content = json.loads(re.sub(r"(?m)^\s*//.*$", "", text))
    assert content["postCreateCommand"] == "make setup"
    assert content["image"] == OFFICIAL_BASE


def test_editor_settings_match_the_formatters() -> None:
    settings = configparser.ConfigParser()
    settings.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    assert settings["*"]["max_line_length"] == "120"
    assert settings["*.py"]["indent_size"] == "4"


@pytest.mark.parametrize("name", PAGES)
def test_linked_files_exist(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 110] == []


def test_following_up_takes_at_most_25_files() -> None:
    section = (ROOT / "docs" / "architecture.md").read_text().partition("## Following `up`")[2].partition("\n## ")[0]
    numbers = re.findall(r"(?m)^\| (\d+) \| `", section)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]
    assert 0 < len(numbers) <= 25


def test_paths_in_the_architecture_page_exist() -> None:
    """Look up the paths in backticks; `<name>` stands for a target."""
    rooms = "cluster|slurm|bootstrap|infra|k8s|muster|trainer|simulator|setup|tests|stacks|examples"
    named = re.findall(rf"`((?:{rooms})/[\w./<>-]*)`", (ROOT / "docs" / "architecture.md").read_text())
    assert named
    missing = [path for path in named if "<" not in path and not list(ROOT.glob(path.rstrip("/")))]
    assert missing == []
