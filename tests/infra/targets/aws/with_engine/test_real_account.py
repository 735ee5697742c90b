"""`make test-aws`: its requirements, and a run with moto in place of a real account."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from infra.targets.aws import plugin as aws_plugin
from infra.targets.aws.leftovers import search
from infra.targets.aws.rehearse.account_resources import list_resources
from infra.targets.aws.rehearse.plugin import PLUGIN
from infra.targets.aws.spec import aws_section
from infra.targets.registry import load_spec as load
from infra.targets.target import Leftovers
from tests.infra.targets.aws.with_engine import __main__ as command
from tests.infra.targets.aws.with_engine import requirements
from tests.infra.targets.aws.with_engine.__main__ import MOTO_ONLY, TESTS
from tests.infra.targets.aws.with_engine.cloud import REPO, on_moto
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, read_example
from tests.moto_server import ACCOUNT, REGION, Moto


@pytest.fixture
def without_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove credentials, plugin and confirmation from the environment."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MUSTER_TEST"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    return monkeypatch


def test_confirmation_is_the_first_requirement(without_aws: pytest.MonkeyPatch) -> None:
    del without_aws
    (message,) = requirements.list_missing()
    assert message.startswith("confirmation: it creates a real cluster in us-east-1, 0.")
    assert message.endswith(" USD per hour as long as it runs; set MUSTER_TEST_AWS=<account number> to confirm")


def test_the_gpu_mode_says_beforehand_what_it_can_cost(without_aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_aws.setenv("MUSTER_HOME", str(tmp_path / "home"))
    done = run_test_aws("--gpu")
    assert done.returncode == 1
    assert f"confirmation: it creates a real cluster in {REGION}, {requirements.describe_gpu_price()}; " in done.stderr
    assert not (tmp_path / "home").exists()


def test_the_gpu_mode_stops_at_its_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = tmp_path / "hanging.py"
    hanging.write_text("import time\n\ndef test_hang():\n    time.sleep(600)\n")
    monkeypatch.setattr(command, "GPU_TESTS", str(hanging))
    monkeypatch.setattr(command, "GPU_CAP_S", 1)
    assert command.run_gpu_test(tmp_path, ["-p", "no:cacheprovider"]) == 1


def test_the_cluster_ends_itself_when_its_removal_has_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cap holds even if nothing on this machine can enforce it."""
    now = datetime(2030, 1, 31, 16, 0, 1, tzinfo=UTC)
    assert requirements.choose_end(now) == "2030-01-31 18:01 UTC"
    monkeypatch.setenv(requirements.END, "2030-01-31 18:01 UTC")
    spec = load({**read_example(requirements.STACK), **requirements.gpu_spec_changes()})
    section = aws_section(spec)
    assert section is not None
    assert (section.ends_at, section.region) == ("2030-01-31 18:01 UTC", REGION)


def test_the_gpu_mode_gives_its_cluster_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(requirements.ACCOUNT, ACCOUNT)
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    # `main` sets it in its own process.
    monkeypatch.setenv(requirements.END, "")
    monkeypatch.setattr(command, "list_missing", lambda **_: [])
    ends: list[str] = []

    def run_gpu_test(_home: Path, _options: list[str]) -> int:
        ends.append(os.environ[requirements.END])
        return 0

    def remove(stack: CloudStack) -> bool:
        ends.append(stack.spec["aws"]["ends_at"])
        return True

    monkeypatch.setattr(command, "run_gpu_test", run_gpu_test)
    monkeypatch.setattr(command, "remove", remove)
    assert command.main(["--gpu"]) == 0
    assert len(ends) == 3
    assert len(set(ends)) == 1
    assert ends[0].endswith(" UTC")


def test_all_missing_requirements_are_listed(without_aws: pytest.MonkeyPatch) -> None:
    without_aws.setenv(requirements.ACCOUNT, ACCOUNT)
    version = aws_plugin.required_version()
    assert requirements.list_missing() == [
        "credentials: no AWS credentials found; `aws sso login` or `aws configure`, or set AWS_PROFILE",
        f"Pulumi's AWS plugin {version}: `pulumi plugin install resource aws {version}`",
    ]


def test_confirming_another_account_is_not_enough(without_aws: pytest.MonkeyPatch, moto: Moto) -> None:
    for name, value in {**moto.environment(), requirements.ACCOUNT: "111122223333", "PATH": str(PLUGIN)}.items():
        without_aws.setenv(name, value)
    assert requirements.list_missing() == [
        f"the right account: the credentials are for {ACCOUNT}, but MUSTER_TEST_AWS is 111122223333"
    ]


def test_without_requirements_nothing_is_created(without_aws: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without_aws.setenv("MUSTER_HOME", str(tmp_path / "home"))
    done = run_test_aws()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("test-aws cannot start; missing:\n  confirmation: ")
    assert not (tmp_path / "home").exists()


# By day, test_pair.py runs what `make test-aws` runs, and the other tests of this file its requirements.
@pytest.mark.nightly
def test_the_cluster_is_removed_after_partial_tests(account: Moto, tmp_path: Path) -> None:
    """Only the test of `up` is selected, so the tests themselves do not remove the cluster."""
    on_moto(account).furnish(requirements.SPEC, tmp_path / "cache")
    before = list_resources(on_moto(account))
    path = os.pathsep.join([str(PLUGIN), os.environ["PATH"]])
    folders = {"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_CACHE": str(tmp_path / "cache"), "PATH": path}
    done = run_test_aws("-k", "test_up", **folders, **{requirements.ACCOUNT: ACCOUNT})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_up PASSED" in done.stdout
    assert f"nothing of cluster {requirements.CLUSTER} is left" in done.stdout
    assert search.find_leftovers(requirements.CLUSTER, REGION) == Leftovers([])
    assert list_resources(on_moto(account)) == before


def test_deselected_tests_exist() -> None:
    assert [name for name in MOTO_ONLY if f"def {name}(" not in (REPO / TESTS).read_text()] == []


def test_the_docs_have_the_current_price() -> None:
    text = " ".join((REPO / "docs" / "aws.md").read_text().split())
    assert requirements.describe_price() in text
    assert requirements.describe_gpu_price() in text


def run_test_aws(*options: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.infra.targets.aws.with_engine", *options]
    return subprocess.run(command, cwd=REPO, env={**os.environ, **env}, text=True, capture_output=True, check=False)
