"""The program that builds or checks an image: its order, what it leaves in the image, and what the check refuses."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap import bundle, restart
from bootstrap.bake import CLEANUP_SCRIPT, COMPILE_SCRIPT, digest_contents
from bootstrap.errors import BootstrapError
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents, ImageRecord
from bootstrap.transport.base import Completed
from infra.targets.aws.node import bake, identity, set_up, signed
from tests.bootstrap.test_bake import install_all
from tests.infra.targets.aws.node.clusters import desired, ubuntu
from tests.infra.targets.aws.node.step_actions import GPU

CONTENTS = ImageContents(roles=("compute",), slurm="26.05", filesystems=("efs",))
ARN = "arn:aws:ec2:us-east-1:123456789012:instance/i-1"
JOB = bake.ImageJob(contents=CONTENTS, region="us-east-1", bucket="b", cluster="toy", name="image-gpu")


class Machine:
    """A machine on which every script succeeds."""

    def __init__(self, missing: str = "") -> None:
        self.scripts: list[str] = []
        self.files: dict[str, bytes] = {}
        self.missing = missing

    def run(self, script: str, **_options: Any) -> Completed:
        self.scripts.append(script)
        if "dpkg-query" in script:
            return Completed(0, "slurm-smd 26.05.5-1\nincomplete\n", "")
        return Completed(1 if self.missing and script == f"command -v {self.missing}" else 0, "", "")

    def put(self, path: str, data: bytes) -> None:
        self.files[path] = data


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Facts], None]:
    return lambda value: monkeypatch.setattr(bake, "collect_facts", lambda *_: value)


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    stored: list[str] = []
    monkeypatch.setattr(identity, "read_arn", lambda _region: ARN)
    monkeypatch.setattr(signed, "store_bytes", lambda _r, _b, key, data, _t: stored.append(f"{key} {_read(data)}"))
    return stored


class Silent:
    """A reporter that reports nothing."""

    def __call__(self, event: object) -> None: ...

    def report(self, state: str, step: str, line: str) -> None: ...


def _read(data: bytes) -> str:
    return json.dumps(json.loads(gzip.decompress(data)))


def baked_facts() -> Facts:
    return install_all(ubuntu(), CONTENTS)


def test_a_build_cleans_the_machine_last(facts: Callable[[Facts], None], reports: list[str]) -> None:
    facts(ubuntu())
    machine: Any = Machine()
    silent: Any = Silent()
    assert bake.bake(machine, JOB, "digest", silent) == ""
    assert machine.scripts[-2:] == [COMPILE_SCRIPT, CLEANUP_SCRIPT]
    assert reports == [f'logs/image-gpu/{ARN}/packages.json.gz {{"slurm-smd": "26.05.5-1"}}']
    record = ImageRecord.model_validate_json(machine.files["/opt/muster/image.json"])
    assert (record.digest, record.bundle) == (digest_contents(CONTENTS), "digest")
    assert "toy" not in machine.files["/opt/muster/image.json"].decode()


def test_a_machine_that_needs_another_kernel_restarts_first(
    facts: Callable[[Facts], None], monkeypatch: pytest.MonkeyPatch, reports: list[str]
) -> None:
    facts(ubuntu())
    monkeypatch.setattr(restart, "read_request", lambda _transport: "another kernel")
    machine: Any = Machine()
    silent: Any = Silent()
    assert bake.bake(machine, JOB, "digest", silent) == "another kernel"
    assert CLEANUP_SCRIPT not in machine.scripts
    assert reports == []


@pytest.mark.parametrize(
    ("facts_of", "missing", "text"),
    [
        (ubuntu, "", "it still needs: build Slurm 26.05.5"),
        (baked_facts, "slurmd", "it has no slurmd"),
    ],
)
def test_an_image_that_lacks_something_is_refused(
    facts: Callable[[Facts], None],
    facts_of: Callable[[], Facts],
    missing: str,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts(facts_of())
    record = ImageRecord(contents=CONTENTS, digest=digest_contents(CONTENTS), bundle="b", built="now")
    monkeypatch.setattr(bake, "RECORD", str(tmp_path / "image.json"))
    (tmp_path / "image.json").write_text(record.model_dump_json())
    machine: Any = Machine(missing)
    with pytest.raises(BootstrapError, match=text):
        bake.check(machine, CONTENTS)


def test_the_job_is_in_the_bundle_in_place_of_a_cluster() -> None:
    assert bundle.IMAGE == "description/image.json"
    assert bake.ImageJob.model_validate_json(JOB.model_dump_json()) == JOB


def test_the_record_of_another_version_does_not_stop_the_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = json.loads(CONTENTS.model_dump_json()) | {"later": 1}
    record = {"contents": contents, "digest": "0", "bundle": "b", "built": "2026-01-01T00:00:00"}
    (tmp_path / "image.json").write_text(json.dumps(record))
    monkeypatch.setattr(set_up, "IMAGE_RECORD", tmp_path / "image.json")
    set_up._describe_image(GPU, desired())
    text = "another version of muster built the image; what is missing is installed now"
    assert text in capsys.readouterr().out
