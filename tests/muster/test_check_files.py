"""`muster check FILE...` as the pre-commit hook runs it: every file is reported; an invalid file fails the command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.forked_muster import run_muster

ROOT = Path(__file__).parents[2]
STACK = "config:\n  muster:cluster:\n    name: {name}\n    target: local\n    groups: {{gpu: {{count: {count}}}}}\n"


def check(tmp_path: Path, *files: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "HOME": str(tmp_path),
        "MUSTER_HOME": str(tmp_path / "home"),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "DOCKER_HOST": f"unix://{tmp_path}/none.sock",
    }
    return run_muster("check", *files, cwd=tmp_path, env=environment)


def test_each_file_is_checked_in_its_folder(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Pulumi.mine.yaml").write_text(STACK.format(name=folder, count=1))
    done = check(tmp_path, "a/Pulumi.mine.yaml", "b/Pulumi.mine.yaml")
    assert done.returncode == 0, done.stderr
    assert [line.split(",")[0] for line in done.stdout.splitlines() if line.startswith("✓")] == [
        "✓ Pulumi.mine.yaml: cluster a",
        "✓ Pulumi.mine.yaml: cluster b",
    ]


def test_invalid_file_does_not_stop_the_check(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.bad.yaml").write_text(STACK.format(name="bad", count=-1))
    (tmp_path / "Pulumi.worse.yaml").write_text("config: {")
    (tmp_path / "Pulumi.good.yaml").write_text(STACK.format(name="good", count=1))
    done = check(tmp_path, "Pulumi.bad.yaml", "Pulumi.worse.yaml", "Pulumi.good.yaml")
    assert done.returncode == 2
    assert "Pulumi.bad.yaml" in done.stderr
    assert "Pulumi.worse.yaml" in done.stderr
    assert "cluster good" in done.stdout


def test_commented_example_is_valid(tmp_path: Path) -> None:
    done = check(tmp_path, str(ROOT / "examples" / "Pulumi.commented.yaml"))
    assert done.returncode == 0, done.stderr
    assert "cluster lab, 5 nodes" in done.stdout


def test_issues_are_json(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.bad.yaml").write_text(STACK.format(name="bad", count=-1))
    (tmp_path / "Pulumi.good.yaml").write_text(STACK.format(name="good", count=1))
    done = check(tmp_path, "--json", "Pulumi.bad.yaml", "Pulumi.good.yaml")
    assert (done.returncode, done.stderr) == (2, "")
    bad, good = json.loads(done.stdout)
    assert (bad["file"], bad["valid"]) == (str(tmp_path / "Pulumi.bad.yaml"), False)
    assert [(issue["level"], issue["where"]) for issue in bad["issues"]] == [("error", "groups.gpu.count")]
    assert good == {
        "file": str(tmp_path / "Pulumi.good.yaml"),
        "valid": True,
        "account_checked": False,
        "issues": [],
    }


def test_other_file_name_is_rejected_and_the_next_file_is_checked(tmp_path: Path) -> None:
    (tmp_path / "Pulumi.good.yaml").write_text(STACK.format(name="good", count=1))
    done = check(tmp_path, "values.yaml", "Pulumi.good.yaml")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "✗ values.yaml: 'values.yaml' is not the name of a stack file; allowed: Pulumi.NAME.yaml",
        "  fix: rename it to `Pulumi.NAME.yaml`, or use `--stack NAME`",
    ]
    assert "cluster good" in done.stdout
