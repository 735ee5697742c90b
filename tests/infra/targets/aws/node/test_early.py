"""The code in user data: AWS signatures, metadata, reports, retries, and compatibility with Python 3.10."""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bootstrap.transport.base import Completed
from cluster import names as plan_names
from cluster.catalog.interpreter import PYTHON
from infra.targets.aws.launcher import node_names
from infra.targets.aws.node import cluster_secrets, early, imds, package_store, set_up, signed
from infra.targets.aws.node import parameters as names
from infra.targets.aws.node.cloud import describe_cloud
from infra.targets.aws.node.signed import Call
from infra.targets.aws.plan import user_data as module
from infra.targets.aws.plan.user_data import EARLY_FILES, MAX_BYTES, user_data
from infra.targets.aws.validate.types import list_regions
from slurm.hostlist import expand
from tests.infra.targets.aws.node.clusters import cloud
from tests.infra.targets.aws.node.metadata import Machine, metadata
from tests.moto_server import REGION, Moto

ROOT = Path(__file__).parents[5]
NOW = "20260102T030405Z"
WHO = imds.Credentials("AKIDEXAMPLE", "secret", "session")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    this = Machine("i-0abc", "127.0.0.1", {names.NODE_TAG: "gpu-1"})
    with metadata("127.0.0.1", {"127.0.0.1": this}) as endpoint:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        yield this


@pytest.mark.parametrize(
    "call",
    [
        Call("GET", "s3", "eu-west-1", "/bucket/bundle/0a b.tar"),
        Call("PUT", "s3", "eu-west-1", "/bucket/packages/x.tar", b"data"),
        Call("POST", "ssm", "us-east-1", "/", b'{"Name": "a"}', {"content-type": "application/x-amz-json-1.1"}),
    ],
    ids=lambda call: f"{call.method} {call.service}",
)
def test_signatures_equal_those_of_botocore(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    host = f"{call.service}.{call.region}.amazonaws.com"
    headers = signed.sign(call, host, NOW, WHO)
    request = AWSRequest(call.method, f"https://{host}{call.path.replace(' ', '%20')}", call.headers, call.body)
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(call.body).hexdigest()
    request.context["timestamp"] = NOW
    request.headers["X-Amz-Date"] = NOW
    request.headers["X-Amz-Security-Token"] = WHO.token
    who = Credentials(WHO.key, WHO.secret, WHO.token)
    auth = (S3SigV4Auth if call.service == "s3" else SigV4Auth)(who, call.service, call.region)
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    assert headers["authorization"].endswith(f"Signature={signature}")


def test_metadata_is_read_with_a_token(machine: Machine) -> None:
    assert imds.read("instance-id") == "i-0abc"
    assert imds.read_tag(names.NODE_TAG) == "gpu-1"
    assert imds.read_tag("muster.group") == ""
    assert imds.read_credentials().token == "session"


def test_a_machine_waits_for_a_name_that_is_assigned_after_the_launch(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.tags.clear()
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            machine.tags[names.NODE_TAG] = "gpu-2"

    monkeypatch.setattr(signed.time, "sleep", pause)
    assert early.read_name(names.NODE_TAG) == "gpu-2"
    assert len(pauses) == 3
    assert pauses[2] > pauses[0]


@pytest.mark.parametrize("numbers", ["7", "1-4", "2 5-6 9"])
def test_a_machine_of_a_large_launch_derives_its_name_from_its_launch_index(machine: Machine, numbers: str) -> None:
    """The launcher derives the same name."""
    machine.tags = {plan_names.GROUP: "gpu", node_names.NUMBERS_TAG: numbers}
    count = len(expand(f"gpu-[{numbers.replace(' ', ',')}]"))
    for machine.launch_index in range(count):
        assert early.read_name(names.NODE_TAG) == node_names.read_node_name(machine.tags, machine.launch_index)


def test_secrets_and_reports_go_through_aws(aws: Moto, machine: Machine) -> None:
    ssm, cloud = aws.client("ssm"), describe_cloud(region=REGION, bucket="keys", domain="d")
    for name, value in {
        names.slurm_key("toy"): "a2V5",
        names.db_password("toy"): "word",
        names.webhook("toy"): "https://example.com/hook",
        names.host_key("toy", "controller"): "private\n",
    }.items():
        ssm.put_parameter(Name=name, Value=value, Type="SecureString")
    secrets = cluster_secrets.read_secrets(cloud, "toy", "controller", "public")
    assert (secrets.slurm_key, secrets.db_password, secrets.host_key) == (b"key", "word", "private\n")
    assert secrets.webhook == ""
    alerted = cluster_secrets.read_secrets(cloud, "toy", "controller", "public", alerts=True)
    assert alerted.webhook == "https://example.com/hook"
    aws.calls.clear()
    own = names.own_host_key(f"arn:aws:ec2:{REGION}:123456789012:instance/{machine.instance}")
    aws.client("s3").create_bucket(Bucket=cloud.bucket)
    aws.client("s3").put_object(Bucket=cloud.bucket, Key=own, Body=b"own\n")
    compute = cluster_secrets.read_secrets(cloud, "toy", "compute", "public", alerts=True)
    assert (compute.webhook, compute.host_key) == ("", "own\n")
    requests = " ".join(call.params["body"] for call in aws.of("GetParameter"))
    assert names.db_password("toy") not in requests
    assert names.webhook("toy") not in requests
    early.report(
        REGION, names.node("toy", "gpu-1"), {"state": "failed", "step": "x", "line": "y" * 9000, "bundle": "d"}
    )
    report = names.Report.model_validate_json(ssm.get_parameter(Name=names.node("toy", "gpu-1"))["Parameter"]["Value"])
    assert (report.instance, report.state, report.step, len(report.line)) == ("i-0abc", "failed", "x", 1000)


class RecordedScripts:
    """A transport that records scripts instead of running them."""

    def __init__(self) -> None:
        self.scripts: list[str] = []

    def run(self, script: str, **_: object) -> Completed:
        self.scripts.append(script)
        return Completed(0, "", "")

    def put(self, *_: object) -> None: ...

    def get(self, path: str) -> bytes:
        raise NotImplementedError(path)

    def close(self) -> None: ...


def test_a_machine_restarts_also_if_that_cannot_be_reported(
    aws: Moto, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter, transport = set_up.Reporter(REGION, names.node("toy", "gpu-1"), "d"), RecordedScripts()
    aws.fail("PutParameter", "ParameterLimitExceeded")
    set_up.restart_machine(transport, "another kernel", reporter)
    assert transport.scripts[-1].endswith("systemctl --no-block reboot")
    assert "muster: the restart could not be reported: PutParameter: 400" in capsys.readouterr().err


def test_objects_are_fetched_and_stored(aws: Moto, machine: Machine, tmp_path: Path) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="bucket")
    (tmp_path / "in").write_bytes(b"packages")
    assert package_store.main(REGION, "bucket", "k", "store", str(tmp_path / "in")) == 0
    assert package_store.main(REGION, "bucket", "k", "fetch", str(tmp_path / "out")) == 0
    assert (tmp_path / "out").read_bytes() == b"packages"
    s3.put_object(Bucket="bucket", Key=names.FLEET, Body=b"{}")
    assert cluster_secrets.read_fleet(cloud()) == b"{}"


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException", "UnrecognizedClientException"])
def test_throttling_and_new_permissions_are_retried_and_an_invalid_request_is_not(
    aws: Moto, machine: Machine, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Systems Manager answers all of them with 400; a new role is denied until it is known everywhere."""
    pauses: list[float] = []
    monkeypatch.setattr(signed.time, "sleep", pauses.append)
    aws.fail("GetParameter", code, times=3)
    aws.client("ssm").put_parameter(Name="/a", Value="v", Type="String")
    assert signed.ssm(REGION, "GetParameter", Name="/a")["Parameter"]["Value"] == "v"
    assert len(pauses) == 3
    with pytest.raises(RuntimeError, match=r"GetParameter: 400 .*ParameterNotFound"):
        signed.ssm(REGION, "GetParameter", Name="/missing")
    assert len(pauses) == 3


@pytest.mark.parametrize("path", EARLY_FILES)
def test_early_files_need_only_python_310(path: str) -> None:
    tree = ast.parse((ROOT / path).read_text(), feature_version=(3, 10))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name
    }
    assert imported <= {*sys.stdlib_module_names, "infra"}


def text(**more: object) -> str:
    given: dict[str, object] = {
        "bucket": "b",
        "digest": "d" * 16,
        "sha256": "5" * 64,
        "region": REGION,
        "role": "compute",
        "cluster": "toy",
        "python": PYTHON.archives["aarch64"],
    }
    return user_data(**given | more)


def test_user_data_passes_shellcheck(tmp_path: Path) -> None:
    script = tmp_path / "user-data.sh"
    script.write_text(text())
    done = subprocess.run(["shellcheck", "--severity=warning", str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "@" not in {line[:1] for line in text().splitlines() if line.isupper()}


@pytest.mark.parametrize("architecture", sorted(PYTHON.archives))
def test_user_data_with_the_longest_settings_is_well_below_the_limit(architecture: str) -> None:
    """EC2 counts the bytes before base64. The settings depend on names that people choose, within these limits."""
    assert MAX_BYTES == 16384
    longest = text(
        bucket="b" * 63,
        region=max(list_regions(), key=len),
        role="controller",
        cluster="c" * 20,
        python=PYTHON.archives[architecture],
        program="bake --check",
        name=names.builder("plain"),
        ends_at=datetime(2030, 1, 31, 18, tzinfo=UTC),
    )
    assert len(longest.encode()) < MAX_BYTES - 1024


def test_user_data_names_the_bundle_by_hash_and_quotes_its_settings() -> None:
    assert f"key={names.bundle('5' * 64)}\n" in text()
    assert "cluster='a b'\n" in text(cluster="a b")


def test_user_data_over_the_limit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SCRIPT", module.SCRIPT + ":" * MAX_BYTES)
    with pytest.raises(ValueError, match=r"user data has \d+ bytes, AWS allows 16384"):
        text()


def is_docstring(node: ast.stmt) -> bool:
    """Return whether a statement is a string, which documents what it is in or the constant before it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_the_files_in_user_data_are_the_same_programs_without_docstrings_and_comments() -> None:
    parts = text().split("<<'MUSTER_FILE'\n")[1:]
    sources = [part.partition("MUSTER_FILE")[0] for part in parts]
    assert len(sources) == len(EARLY_FILES)
    for path, source in zip(EARLY_FILES, sources, strict=True):
        program = ast.parse((ROOT / path).read_text())
        for node in ast.walk(program):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                node.body = [part for part in node.body if not is_docstring(part)]
        assert ast.dump(ast.parse(source)) == ast.dump(program)
        assert "#" not in source
    assert "def download(" in sources[-1]


def test_a_public_file_is_downloaded_only_with_its_checksum(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"python")
    right = hashlib.sha256(b"python").hexdigest()
    assert early.main("download", source.as_uri(), str(target), right) == 0
    assert target.read_bytes() == b"python"
    assert early.main("download", source.as_uri(), str(target), "0" * 64) == 1
    assert capsys.readouterr().err == f"{source.as_uri()} has sha256 {right}, expected {'0' * 64}\n"
