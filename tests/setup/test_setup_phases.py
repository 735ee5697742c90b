"""The set-up phases that the Makefile runs before `muster up`: they depend on the stack's target."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.engine.stop import Stop
from infra.targets import registry
from muster.commands.setup_phases import print_setup_phases
from setup.registry import NAMES

STACK = "config:\n  muster:cluster:\n    name: mine\n    target: {target} # where\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (STACK.format(target="aws"), "apt venv pulumi"),
        (STACK.format(target="local"), ""),
        (STACK.format(target="local") + '    software: {slurm: "26.05"}\n', ""),
        (STACK.format(target="local") + '    software: {slurm: "24.11"}\n', "--slurm 24.11"),
        (STACK.format(target="local") + "    software: {slurm: 26.05}\n", ""),
        (STACK.format(target="aws") + '    software: {slurm: "26.05"}\n', "apt venv pulumi"),
        (STACK.format(target="elsewhere"), ""),
        (STACK.format(target="[]"), ""),
        ("config: {", ""),
        ("", ""),
    ],
)
def test_phases_depend_on_the_target_of_the_stack(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_STACKS", str(tmp_path))
    (tmp_path / "Pulumi.mine.yaml").write_text(text)
    print_setup_phases("mine")
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("target", "slurm", "expected"),
    [("local", "newest", ""), ("local", "24.11", "--slurm 24.11"), ("aws", "newest", "apt venv pulumi")],
)
def test_an_upgrade_needs_the_image_of_its_release(
    target: str,
    slurm: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MUSTER_STACKS", str(tmp_path))
    (tmp_path / "Pulumi.mine.yaml").write_text(STACK.format(target=target))
    print_setup_phases("mine", slurm)
    assert capsys.readouterr().out == f"{expected}\n"


def test_an_unknown_stack_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_STACKS", str(tmp_path))
    with pytest.raises(Stop):
        print_setup_phases("mine")


@pytest.mark.parametrize("target", sorted(registry._TARGETS))
def test_targets_name_existing_phases(target: str) -> None:
    assert set(registry.setup_phases(target)) <= set(NAMES)
