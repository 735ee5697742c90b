"""Rehearsals of types that no example has: one outside the catalog, and an UltraServer with IMEX in a Local Zone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.targets.aws.rehearse.run_rehearsal import list_remains, run_rehearsal
from tests.infra.targets.aws.with_engine.cloud_stack import read_example

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

SPEED = "30"
ZONE, LOCAL_ZONE = "us-east-1a", "us-east-1-dfw-2a"
BLOCK = {"kind": "block", "reservation": "cr-0123456789abcdef0", "zones": [LOCAL_ZONE]}
ULTRASERVER: dict[str, Any] = {
    "name": "blades",
    "target": "aws",
    "aws": {"region": "us-east-1", "zones": [ZONE, LOCAL_ZONE]},
    "controller": {"instance_type": "m7g.xlarge"},
    "login": {"instance_type": "m7g.large"},
    "network": {
        "vpc_id": "vpc-0123456789abcdef0",
        "subnet_ids": ["subnet-0123456789abcdef0", "subnet-0123456789abcdef1"],
    },
    "storage": {"shared": {"kind": "fsx-lustre", "keep": False}},
    "groups": {"gb": {"instance_type": "p6e-gb200.36xlarge", "count": 18, "fabric": "efa", "capacity": BLOCK}},
    "users": {"alice": {"uid": 2001}},
}


def rehearse(home: Path, spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> str:
    """Rehearse a spec that is no example, and return the output."""
    stacks = home / "stacks"
    stacks.mkdir()
    (stacks / "Pulumi.own.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": spec}}))
    monkeypatch.setenv("MUSTER_STACKS", str(stacks))
    output = run_rehearsal(home, "own", "--speed", SPEED)
    assert "denied" not in (home / "rehearsals" / "own" / "timeline.txt").read_text()
    assert list_remains(home, "own") == []
    return output


def test_a_type_outside_the_catalog_is_looked_up_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_example("aws-g6-pair")
    spec["groups"] = {"gpu": {"instance_type": "g4dn.12xlarge", "min": 0, "max": 2, "fabric": "tcp"}}
    spec.pop("budget", None)
    output = rehearse(tmp_path, spec, monkeypatch)
    assert "groups.gpu.instance_type: 'g4dn.12xlarge' is not in the catalog" in output
    assert "the job ran on gpu-1, gpu-2" in output


def test_jobs_on_an_ultraserver_start_their_imex_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = rehearse(tmp_path, ULTRASERVER, monkeypatch)
    assert "groups.gb.instance_type: p6e-gb200.36xlarge runs as x86_64" in output
    assert "the job ran on gb-1, gb-2" in output
