"""`make test-aws`: refused in plain words; and what it does, with moto behind the credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.targets.aws import plugin as aws_plugin
from infra.targets.aws.leftovers import search
from infra.targets.target import Leftovers
from tests.infra.targets.aws.with_engine import needs
from tests.infra.targets.aws.with_engine.__main__ import ON_MOTO_ALONE, TESTS
from tests.infra.targets.aws.with_engine.cloud import PLUGIN, REPO, on_moto
from tests.infra.targets.aws.with_engine.everything import everything
from tests.moto_server import ACCOUNT, REGION, Moto


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No credentials, no plugin, no yes."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MUSTER_TEST"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    return monkeypatch


def test_without_a_yes_nobody_is_asked(bare: pytest.MonkeyPatch) -> None:
    del bare
    (said,) = needs.missing()
    assert said.startswith("a yes: it makes a real cluster in us-east-1, 0.")
    assert said.endswith(
        " USD per hour as long as it runs; MUSTER_TEST_AWS=<number of the account> says yes to that account"
    )


def test_what_is_missing_is_named_all_at_once(bare: pytest.MonkeyPatch) -> None:
    bare.setenv(needs.ACCOUNT, ACCOUNT)
    wanted = aws_plugin.required_version()
    assert needs.missing() == [
        "credentials: no AWS credentials found; `aws sso login` or `aws configure`, or set AWS_PROFILE",
        f"Pulumi's AWS plugin {wanted}: `pulumi plugin install resource aws {wanted}`",
    ]


def test_a_yes_to_another_account_is_none(bare: pytest.MonkeyPatch, moto: Moto) -> None:
    for name, value in {**moto.environment(), needs.ACCOUNT: "111122223333", "PATH": str(PLUGIN)}.items():
        bare.setenv(name, value)
    assert needs.missing() == [
        f"the right account: the credentials are of {ACCOUNT}, MUSTER_TEST_AWS says 111122223333"
    ]


def test_it_ends_before_it_begins(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare.setenv("MUSTER_HOME", str(tmp_path / "home"))
    done = in_account()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("test-aws lacks\n  a yes: ")
    assert not (tmp_path / "home").exists()


def test_it_removes_what_its_tests_leave(account: Moto, tmp_path: Path) -> None:
    """Here they are told to end after `up`, and the cluster goes all the same."""
    on_moto(account).furnish(needs.SPEC, tmp_path / "cache")
    before = everything(on_moto(account))
    path = os.pathsep.join([str(PLUGIN), os.environ["PATH"]])
    places = {"MUSTER_HOME": str(tmp_path / "home"), "MUSTER_CACHE": str(tmp_path / "cache"), "PATH": path}
    done = in_account("-k", "test_up and not again", **places, **{needs.ACCOUNT: ACCOUNT})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_up PASSED" in done.stdout
    assert f"nothing of cluster {needs.CLUSTER} is left" in done.stdout
    assert search.find_leftovers(needs.CLUSTER, REGION) == Leftovers([])
    assert everything(on_moto(account)) == before


def test_what_is_left_out_of_it_exists() -> None:
    assert [name for name in ON_MOTO_ALONE if f"def {name}(" not in (REPO / TESTS).read_text()] == []


def test_its_price_is_in_the_docs() -> None:
    assert needs.price() in (REPO / "docs" / "aws.md").read_text()


def in_account(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tests.infra.targets.aws.with_engine", *words]
    return subprocess.run(line, cwd=REPO, env={**os.environ, **env}, text=True, capture_output=True, check=False)
