"""Commands in messages of validators and resources, which do not know their stack, name the stack at hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from infra.resources.error import ResourceError
from infra.resources.job_queue import UnknownQueue
from muster import cli
from muster.options import chosen_stack
from tests.infra.targets.aws.specs import good
from tests.muster.test_cli import muster


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home with a stack in which an SSH port is published, which AWS cannot do."""
    description = good(login={"ssh_port": 2222})
    (tmp_path / "stacks").mkdir()
    for name in ("trial", "local"):
        content = yaml.safe_dump({"config": {"muster:cluster": description}})
        (tmp_path / "stacks" / f"Pulumi.{name}.yaml").write_text(content)
    return tmp_path


@pytest.mark.nightly_cases("local-make ssh")
@pytest.mark.parametrize(("stack", "command"), [("trial", "make ssh STACK=trial"), ("local", "make ssh")])
def test_issues_of_a_stack_file_name_the_stack(home: Path, stack: str, command: str) -> None:
    fix = f"remove it; `{command}` needs no port"
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "AWS_SHARED_CREDENTIALS_FILE": "none"}
    for arguments in (("check", "--stack", stack), ("up", "-s", stack)):
        assert f"fix: {fix}" in muster(*arguments, home=home, **nowhere).stderr
    file = str(home / "stacks" / f"Pulumi.{stack}.yaml")
    assert f"fix: {fix}" in muster("check", file, home=home, **nowhere).stderr
    described = json.loads(muster("check", "--stack", stack, "--json", home=home, **nowhere).stdout)
    assert fix in [issue["fix"] for issue in described["issues"]]


def test_error_of_a_resource_names_the_stack(capsys: pytest.CaptureFixture[str]) -> None:
    token = chosen_stack.set("trial")
    try:
        with pytest.raises(ResourceError) as error:
            UnknownQueue("no answer").set_aside({"gpu-1": "its image is old"})
        assert cli._report_failure(error.value) == 1
    finally:
        chosen_stack.reset(token)
    assert "check with `make status STACK=trial`" in capsys.readouterr().err
