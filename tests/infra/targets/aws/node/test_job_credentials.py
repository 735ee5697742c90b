"""Credentials for jobs: fetched from STS with those of the machine, and read by an SDK as any user."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest

from infra.targets.aws.node import job_credentials
from tests.infra.targets.aws.node.metadata import Machine, metadata
from tests.moto_server import REGION, Moto

ROLE = "arn:aws:iam::123456789012:role/muster-demo-jobs"


@pytest.fixture
def machine(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    this = Machine("i-0abc", "127.0.0.1")
    with metadata("127.0.0.1", {"127.0.0.1": this}) as endpoint:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        yield this


@pytest.mark.usefixtures("machine")
def test_an_sdk_finds_the_credentials_of_the_role(aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "jobs"
    assert job_credentials.main(REGION, ROLE, str(folder)) == 0
    (call,) = aws.of("AssumeRole")
    assert (call.params["RoleArn"], call.params["RoleSessionName"]) == (ROLE, "i-0abc")
    stored = json.loads((folder / job_credentials.CREDENTIALS).read_text())
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {"credentials.json": 0o644, "config": 0o644}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / job_credentials.CONFIG))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    session = botocore.session.Session()
    credentials = session.get_credentials()
    assert credentials is not None
    assert credentials.get_frozen_credentials().access_key == stored["AccessKeyId"]
    assert credentials.get_frozen_credentials().token == stored["SessionToken"]
    assert (credentials.method, session.get_config_variable("region")) == ("custom-process", REGION)


@pytest.mark.usefixtures("machine")
def test_a_rejected_request_is_reported_and_keeps_the_old_credentials(
    aws: Moto, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_credentials.main(REGION, ROLE, str(tmp_path))
    before = (tmp_path / job_credentials.CREDENTIALS).read_text()
    aws.fail("AssumeRole", "ValidationError", times=1)
    assert job_credentials.main(REGION, ROLE, str(tmp_path)) == 1
    assert f"AssumeRole of {ROLE}" in capsys.readouterr().err
    assert (tmp_path / job_credentials.CREDENTIALS).read_text() == before
