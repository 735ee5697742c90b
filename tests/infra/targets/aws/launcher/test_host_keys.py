"""Host keys of compute nodes: each machine gets that of its name, and nobody else's."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path

import pytest

from infra.resources import ssh_key
from infra.targets.aws.build.nodes import Group
from infra.targets.aws.launcher.api import AT_ONCE, AwsApi
from infra.targets.aws.launcher.fleet import Fleet
from infra.targets.aws.launcher.host_keys import hand_over
from infra.targets.aws.launcher.launch import launch
from infra.targets.aws.node import parameters
from infra.targets.aws.rehearse.certificates import Authority
from slurm.power.launcher import LauncherError
from tests.moto_server import ACCOUNT, REGION, Moto, listening
from tests.slurm.power.cluster import Clock, list_running
from tests.slurm.power.states import machine

ARNS = f"arn:aws:ec2:{REGION}:{ACCOUNT}:instance/"
BUCKET = "host-keys-of-demo"


@pytest.fixture
def keyed(aws: Moto, fleet: Fleet) -> Fleet:
    """Return the fleet of a cluster whose nodes have keys of their own."""
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    keys = {f"gpu-{number}": f"private of gpu-{number}" for number in range(1, 9)}
    s3.put_object(Bucket=BUCKET, Key=parameters.HOST_KEYS, Body=json.dumps(keys).encode())
    return fleet.model_copy(update={"bucket": BUCKET, "machine_arns": ARNS})


def read_keys(aws: Moto) -> dict[str, str]:
    """Return the keys that were handed over, by machine."""
    s3 = aws.client("s3")
    prefix = parameters.own_host_key(ARNS)
    listed = s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
    return {
        item["Key"].removeprefix(prefix): s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read().decode()
        for item in listed
    }


def test_a_launch_hands_each_machine_the_key_of_its_name(aws: Moto, keyed: Fleet) -> None:
    result = launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-2", "gpu-5")], "token")
    assert read_keys(aws) == {machine.id: f"private of {name}" for name, machine in result.machines.items()}
    assert sorted(result.machines) == ["gpu-2", "gpu-5"]


def test_a_node_without_a_key_is_named_and_its_machine_ended(aws: Moto, keyed: Fleet) -> None:
    with pytest.raises(LauncherError, match=r"host-keys\.json has no host key of gpu-9"):
        launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-9",)], "token")
    assert list_running(aws) == []
    assert read_keys(aws) == {}


def test_up_hands_keys_to_machines_that_an_older_version_launched(
    aws: Moto, fleet: Fleet, keyed: Fleet, clock: Clock
) -> None:
    old = launch(AwsApi(REGION), fleet, fleet.group("gpu").options, [("gpu-7",)], "token").machines["gpu-7"]
    assert read_keys(aws) == {}
    api = AwsApi(REGION, sleep=clock.sleep, clock=clock.now)
    Group(api, keyed, "gpu", 0, 8, sleep=clock.sleep, clock=clock.now).ensure()
    assert read_keys(aws) == {old.id: "private of gpu-7"}


def test_keys_are_handed_over_at_the_same_time_but_not_all_at_once(aws: Moto, keyed: Fleet) -> None:
    """A group of thousands of nodes would otherwise wait for one call after another."""
    machines = {f"node-{number}": machine(f"node-{number}", number) for number in range(2 * AT_ONCE)}
    aws.client("s3").put_object(
        Bucket=BUCKET, Key=parameters.HOST_KEYS, Body=json.dumps({name: f"private of {name}" for name in machines})
    )
    # Each call waits until as many as allowed have arrived; with fewer at once, none would ever go on.
    together, lock = threading.Barrier(AT_ONCE), threading.Lock()
    under_way: set[str] = set()
    most: list[int] = []

    def meet(_service: str, action: str, _params: dict[str, str]) -> str:
        if action.startswith("PUT "):
            with lock:
                under_way.add(action)
                most.append(len(under_way))
            together.wait(timeout=120)
            with lock:
                under_way.discard(action)
        return ""

    aws.interfere = meet
    hand_over(AwsApi(REGION), keyed, machines)
    aws.interfere = None
    assert read_keys(aws) == {new.id: f"private of {name}" for name, new in machines.items()}
    assert max(most) == AT_ONCE


def test_a_refused_key_ends_the_launch_with_its_code(aws: Moto, keyed: Fleet) -> None:
    aws.interfere = lambda _service, action, _params: "AccessDenied" if action.startswith("PUT ") else ""
    with pytest.raises(LauncherError, match="AccessDenied"):
        launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-2", "gpu-5")], "token")
    aws.interfere = None
    assert list_running(aws) == []
    assert read_keys(aws) == {}


def test_a_key_that_was_handed_over_by_tls_is_the_private_half_of_the_public_key(
    aws: Moto, keyed: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS, AWS's library uploads in chunks, with a checksum at the end and without the length of the request."""
    key, authority = ssh_key.generate("gpu-1.demo"), Authority.create()
    aws.client("s3").put_object(Bucket=BUCKET, Key=parameters.HOST_KEYS, Body=json.dumps({"gpu-1": key.private}))
    authority_file, settings = tmp_path / "authority.pem", tmp_path / "config"
    authority_file.write_bytes(authority.pem)
    # No name server has an entry for a bucket on this machine.
    settings.write_text("[default]\ns3 =\n  addressing_style = path\n")
    with listening(aws, tls=authority.issue(["localhost"], tmp_path)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url.replace("127.0.0.1", "localhost"))
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority_file))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(settings))
        launch(AwsApi(REGION), keyed, keyed.group("gpu").options, [("gpu-1",)], "token")

    (stored,) = read_keys(aws).values()
    private = tmp_path / "ssh_host_ed25519_key"
    private.touch(mode=0o600)
    private.write_text(stored)
    public = subprocess.run(["ssh-keygen", "-y", "-f", private], capture_output=True, text=True, check=True).stdout
    assert public.split()[:2] == key.public.split()[:2]
