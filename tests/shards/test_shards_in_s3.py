"""Token shards in S3, read with boto3 or without, against moto's server."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.moto_server import Moto
from tests.trainer.token_shards import write_shards
from trainer.config.errors import ConfigError
from trainer.data import remote
from trainer.data.shard_folder import Reading
from trainer.data.tokens import TokenShards
from trainer.life.cause import Cause, classify

PUBLIC = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", '
PUBLIC += '"Resource": "arn:aws:s3:::texts/*"}]}'


@pytest.fixture
def bucket(aws: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """Upload two shards to s3://texts/web; retries do not wait."""
    monkeypatch.setattr(remote, "_RETRY_DELAYS_S", (0.0,) * 6)
    folder = write_shards(tmp_path / "data", range(41), range(41, 82))
    client = aws.client("s3")
    client.create_bucket(Bucket="texts")
    for path in folder.iterdir():
        client.put_object(Bucket="texts", Key=f"web/{path.name}", Body=path.read_bytes())
    aws.calls.clear()
    return aws


def read(tmp_path: Path, url: str = "s3://texts/web/") -> list[int]:
    source = TokenShards(url, 4, 100, Reading(cache=str(tmp_path / "cache")))
    return source.fetch(np.arange(source.length), None)["inputs"].flatten().tolist()


def test_shards_are_read_with_boto3_and_kept(bucket: Moto, tmp_path: Path) -> None:
    expected = [*range(40), *range(41, 81)]
    assert read(tmp_path) == expected
    assert read(tmp_path) == expected
    assert sorted(bucket.count().items()) == [
        ("GET /texts/web/index.json", 2),
        ("GET /texts/web/shard-00000.bin", 1),
        ("GET /texts/web/shard-00001.bin", 1),
    ]


def test_busy_answers_are_retried(bucket: Moto, tmp_path: Path) -> None:
    bucket.fail("GET /texts/web/index.json", "InternalError")
    bucket.fail("GET /texts/web/shard-00000.bin", "RequestLimitExceeded", times=3)
    assert len(read(tmp_path)) == 80
    assert bucket.count()["GET /texts/web/shard-00000.bin"] == 4


def test_a_store_out_of_reach_is_a_failure_of_the_network(
    bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on port 9 of loopback.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ConnectionError, match=r"s3://texts/web/index.json: Could not connect") as caught:
        read(tmp_path)
    assert classify(caught.value) is Cause.NETWORK
    assert capsys.readouterr().err.count("s3://texts/web/index.json: Could not connect") == 1


def set_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "config").write_text(f"[default]\n{text}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def test_credentials_that_cannot_be_fetched_are_a_failure_of_the_network(
    bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_profile(tmp_path, monkeypatch, "credential_process = sh -c 'echo x >> $CALLS; exit 1'")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    with pytest.raises(ConnectionError, match=r"s3://texts/web/: Error when retrieving credentials") as caught:
        read(tmp_path)
    assert classify(caught.value) is Cause.NETWORK
    assert len((tmp_path / "calls").read_text().split()) == 7


def test_a_profile_that_does_not_exist_is_named(bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_profile(tmp_path, monkeypatch, "")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match=r"profile \(nobody\) could not be found\); check the AWS credentials"):
        read(tmp_path)


def test_a_public_bucket_is_read_without_boto3(bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"{bucket.url}/")
    bucket.client("s3").put_bucket_policy(Bucket="texts", Policy=PUBLIC)
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert len(read(tmp_path)) == 80
    assert bucket.count()["GET /texts/web/index.json"] == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://texts/nowhere", "there is no s3://texts/nowhere/index.json (NoSuchKey); check the address"),
        ("s3://nobody/web", "there is no s3://nobody/web/index.json (NoSuchBucket)"),
        ("s3://Not_A_Bucket!/web", "s3://Not_A_Bucket!/web/index.json cannot be read (Parameter validation failed"),
        ("s3:///web", "s3:///web names no bucket or server; use s3://BUCKET/FOLDER"),
    ],
)
def test_a_wrong_address_is_named(bucket: Moto, tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, url)
    assert str(caught.value).startswith(f"data.path: {message}")


def test_missing_permissions_are_named(bucket: Moto, tmp_path: Path) -> None:
    bucket.fail("GET /texts/web/index.json", "UnauthorizedOperation")
    with pytest.raises(
        ConfigError, match=r"web/index.json must not be read \(403 .*allow s3:GetObject on s3://texts/web/"
    ):
        read(tmp_path)


@pytest.mark.parametrize("has_boto3", [True, False])
def test_missing_credentials_are_named(
    bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_boto3: bool
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    if not has_boto3:
        monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError) as caught:
        read(tmp_path)
    fix = "provide AWS credentials: a role of the machine" if has_boto3 else "install boto3 (muster-env add boto3)"
    assert fix in str(caught.value)
