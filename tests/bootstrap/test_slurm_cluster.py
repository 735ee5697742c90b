"""The SlurmCluster resource: what counts as a change, refreshes that never fail, and a stable bundle digest."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from bootstrap.transport.ssh import public_key
from cluster.inventory import Inventory
from infra.resources.slurm_cluster import SlurmClusterProvider, bundle_digest
from tests.bootstrap.clusters import desired


@pytest.fixture
def props(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    target = desired()
    key = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    # Nothing listens on port 9 of this machine, so connections are refused at once.
    unreachable = {"address": "127.0.0.1", "ssh_port": 9, "host_key": public_key(key)}
    nodes = [n.model_copy(update=unreachable) for n in target.inventory.nodes]
    return {
        "inventory": Inventory(cluster="toy", target="local", nodes=tuple(nodes)).model_dump_json(),
        "spec": target.spec.model_dump_json(),
        "stack": "toy",
        "bundle": bundle_digest(target.spec),
        "ssh_private_key": key,
        "slurm_key": base64.b64encode(b"k" * 1024).decode(),
        "db_password": "password",
        "pending": [],
    }


def test_only_new_inputs_and_pending_changes_are_a_diff(props: dict[str, object]) -> None:
    provider = SlurmClusterProvider()
    assert not provider.diff("id", props, dict(props)).changes
    assert provider.diff("id", props, props | {"bundle": "other"}).changes
    assert provider.diff("id", props, props | {"inventory": "other"}).changes
    assert provider.diff("id", props | {"pending": ["gpu-1: compute: start slurmd"]}, props).changes


def test_a_refresh_reports_an_unreachable_cluster_without_failing(
    props: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.resources.slurm_cluster._REFRESH_DEADLINE_S", 0.2)
    result = SlurmClusterProvider().read("id", props)
    assert result.id == "id"
    assert "access file inventory.json is missing or changed" in result.outs["pending"]
    gone = [line for line in result.outs["pending"] if line.startswith("controller: connect: SSH at 127.0.0.1:9")]
    assert len(gone) == 1
    assert "connection refused" in gone[0]


def test_a_refresh_with_an_invalid_spec_does_not_fail(props: dict[str, object]) -> None:
    result = SlurmClusterProvider().read("id", props | {"spec": "{}"})
    assert result.outs["pending"] == ["the inputs of the cluster cannot be read (ValidationError)"]


def test_the_bundle_digest_is_reproducible() -> None:
    assert bundle_digest(desired().spec) == bundle_digest(desired().spec)
