"""Two operators share a state in S3: each has a MUSTER_HOME of their own, as on two machines, and the real engine.

The first one is killed during `up`, the second one releases the lock, continues, and removes the cluster.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.targets.aws.rehearse.account_resources import list_resources
from tests.infra.targets.aws.with_engine.cloud import REPO, Cloud, on_moto
from tests.infra.targets.aws.with_engine.cloud_stack import CloudStack, read_example
from tests.moto_server import Moto

pytestmark = pytest.mark.nightly

STACK = "aws-g6-pair"
BUCKET = "operators-state"
# Only a failure takes as long: what is waited for comes for certain, however slow the machine is.
TIMEOUT_S = 600
URL = f"s3://{BUCKET}/team?region=us-east-1"
# As `Holder` prints them: command, user, host, process and time.
# Errors name the command as a user runs it; `state show` prints what the lock holds.
HOLDER = (
    r"`(?:muster {0}|make {0} STACK=aws-g6-pair)` by \S+ on \S+ \(process \d+, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d\)"
)


class Operator(CloudStack):
    """An operator with a home of their own."""

    def state(self, *arguments: str, check: bool = True) -> str:
        return self._run([sys.executable, "-m", "muster.cli", "state", *arguments], check=check)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command in a session of its own, so that it can be killed with what it started."""
        return subprocess.Popen(
            [sys.executable, "-m", "muster.cli", arguments[0], "--stack", self.name, *arguments[1:]],
            env=self.environment(),
            cwd=REPO,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def give_passphrase(self, other: Operator) -> None:
        (other.home / "passphrase").write_text((self.home / "passphrase").read_text())
        (other.home / "passphrase").chmod(0o600)

    def read(self, name: str) -> str:
        return (self.home / self.name / name).read_text()


@pytest.fixture(scope="module")
def operators(account: Moto, tmp_path_factory: pytest.TempPathFactory) -> tuple[Operator, Operator]:
    """Return Ada, who creates the cluster, and Bob, whose MUSTER_HOME is empty."""
    cloud = on_moto(account)
    shared = replace(cloud, variables={**cloud.variables, "MUSTER_STATE": URL})
    spec = {**read_example(STACK), "name": "shared"}
    ada = Operator(STACK, tmp_path_factory.mktemp("ada"), spec, shared)
    bob = Operator(STACK, tmp_path_factory.mktemp("bob"), spec, shared)
    return ada, bob


@pytest.fixture(scope="module")
def before(operators: tuple[Operator, Operator]) -> set[str]:
    """Return the resources of the account with the bucket of the state."""
    ada, _ = operators
    refused = ada.muster("up", check=False)
    assert f"bucket '{BUCKET}' does not exist" in refused
    assert f"muster state create '{URL}'" in refused
    assert "private, versioned, encrypted with a key of S3, TLS only" in ada.state("create", URL)
    return list_resources(ada.cloud)


def read_objects(cloud: Cloud) -> dict[str, bytes]:
    """Return every version of every object of the bucket."""
    s3, objects = cloud.client("s3"), {}
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=BUCKET):
        for entry in page.get("Versions", []):
            body = s3.get_object(Bucket=BUCKET, Key=entry["Key"], VersionId=entry["VersionId"])["Body"]
            objects[f"{entry['Key']} {entry['VersionId']}"] = body.read()
    return objects


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def list_processes(home: Path) -> list[int]:
    """Return the processes with this MUSTER_HOME."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"MUSTER_HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def test_new_bucket_is_private_versioned_and_encrypted(operators: tuple[Operator, Operator], before: set[str]) -> None:
    s3 = operators[0].cloud.client("s3")
    assert before
    assert s3.get_bucket_versioning(Bucket=BUCKET)["Status"] == "Enabled"
    assert set(s3.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"].values()) == {True}
    (rule,) = s3.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rule["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    (statement,) = json.loads(s3.get_bucket_policy(Bucket=BUCKET)["Policy"])["Statement"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_second_operator_is_refused_while_the_first_creates(
    operators: tuple[Operator, Operator], before: set[str], account: Moto
) -> None:
    """Ada is killed meanwhile; her lock stays until Bob releases it, and he continues what she began."""
    ada, bob = operators
    with account.hold("RunInstances") as launching:
        process = ada.start("up", "--no-preflight")
        wait_until(lambda: launching.is_set() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0]
        without = bob.muster("up", check=False)
        assert f"{bob.home}/passphrase is missing: it decrypts the secrets of {STACK} in {URL}" in without
        ada.give_passphrase(bob)
        refused = bob.muster("up", "--no-preflight", check=False)
        assert re.search(f"another command is using stack {STACK}: {HOLDER.format('up')}", refused), refused
        assert f"(process {process.pid}, " in refused
        assert f".venv/bin/muster state unlock --stack {STACK}" in refused
        assert "another command is using stack" in bob.muster("teardown", "--yes", check=False)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not list_processes(ada.home))
    # AWS executes what it has received: Ada's machine starts, and nobody knows of it.
    wait_until(lambda: account.of("RunInstances"))
    assert "another command is using stack" in bob.muster("up", "--no-preflight", check=False)
    assert re.search(rf"lock +{HOLDER.format('up')}", bob.state("show", "--stack", STACK))
    assert "add --yes" in bob.state("unlock", "--stack", STACK, check=False)
    assert "released the lock of `muster up`" in bob.state("unlock", "--stack", STACK, "--yes")
    assert "is not locked" in bob.state("unlock", "--stack", STACK)
    assert "ready: controller, up to 2 autoscaled nodes in " in bob.muster("up", "--no-preflight")


def test_both_see_the_same_cluster_and_change_nothing(operators: tuple[Operator, Operator]) -> None:
    ada, bob = operators
    assert "nothing to change" in ada.muster("up", "--no-preflight")
    bob.pulumi("preview", "--expect-no-changes")
    for name in ("id_ed25519", "known_hosts", "inventory.json"):
        assert ada.read(name) == bob.read(name)
    assert f'IdentityFile "{ada.home / STACK / "id_ed25519"}"' in ada.read("ssh_config")
    assert (ada.home / STACK / "id_ed25519").stat().st_mode & 0o777 == 0o600
    statuses = [json.loads(operator.muster("status", "--json")) for operator in operators]
    assert statuses[0]["nodes"] == statuses[1]["nodes"] != []


def test_no_secret_is_in_the_bucket_in_plain_text(operators: tuple[Operator, Operator]) -> None:
    ada, _ = operators
    objects = read_objects(ada.cloud)
    assert any(key.startswith(f"team/.pulumi/stacks/muster/{STACK}.json ") for key in objects)
    key_lines = ada.read("id_ed25519").splitlines()[1:-1]
    secrets = [key_lines[2], (ada.home / "passphrase").read_text()]
    for resource in json.loads(ada.pulumi("stack", "export", "--show-secrets"))["deployment"]["resources"]:
        values = [value for value in resource.get("outputs", {}).values() if isinstance(value, dict)]
        texts = [json.loads(value["plaintext"]) for value in values if "plaintext" in value]
        secrets += [text[:200] for text in texts if isinstance(text, str) and len(text) > 10]
    assert len(secrets) > 3
    leaks = [key for key, content in objects.items() for secret in secrets if secret.encode() in content]
    assert leaks == []


def test_second_operator_removes_the_cluster_while_the_first_is_refused(
    operators: tuple[Operator, Operator], before: set[str], account: Moto
) -> None:
    ada, bob = operators
    with account.hold("TerminateInstances") as removing:
        process = bob.start("teardown", "--yes")
        wait_until(lambda: removing.is_set() or process.poll() is not None)
        refused = ada.muster("up", "--no-preflight", check=False)
        assert re.search(f"another command is using stack {STACK}: {HOLDER.format('teardown')}", refused), refused
    output = process.communicate(timeout=TIMEOUT_S)[0]
    assert process.returncode == 0, output
    assert "nothing of cluster shared is left" in output
    assert list_resources(bob.cloud) == before
    assert bob.receipt["left"] == 0
    assert bob.receipt["removed"] > 10


def test_the_receipt_is_there_for_the_first_operator_too(operators: tuple[Operator, Operator]) -> None:
    ada, bob = operators
    assert f"stack {STACK} is not up" in ada.muster("ssh", check=False)
    assert ada.receipt == bob.receipt
    assert not (ada.home / STACK / "id_ed25519").exists()
    shown = json.loads(ada.state("show", "--stack", STACK, "--json"))
    assert (shown["state"], shown["stacks"], shown["lock"]) == (URL, [], "")
    assert "nothing to remove" in ada.muster("teardown", "--yes")
