"""The end of a cluster on systemd machines: which machine ends itself, and what does not prevent it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from bootstrap.bake import CLEANUP_SCRIPT
from cluster import names
from cluster.catalog.interpreter import PYTHON
from infra.targets.aws.node import parameters
from infra.targets.aws.plan.user_data import user_data
from infra.targets.local import docker_engine as engine_client
from tests.harness import wait_until
from tests.infra.targets.aws.node.machines import BUCKET, CLUSTER, Machines
from tests.moto_server import REGION

pytestmark = pytest.mark.e2e

SERVICE = "muster-cluster-end"
UNIT = f"/etc/systemd/system/{SERVICE}.service"
LINK = f"/etc/systemd/system/multi-user.target.wants/{SERVICE}.service"
GARBAGE = f"sed -i 's/ENDS_AT=[0-9]*/ENDS_AT=tomorrow/' {UNIT}"
PASSED = f"sed -i 's/ENDS_AT=[0-9]*/ENDS_AT=1/' {UNIT}"
# What the service has if its metadata was never readable, and a reader that fails.
UNREADABLE = f"sed -i 's/ INSTANCE=[^ ]*/ INSTANCE=/; s/READER=.*/READER=cmFpc2UgU3lzdGVtRXhpdCgxKQo=/' {UNIT}"
START_AGAIN = f"systemctl daemon-reload; systemctl restart --no-block {SERVICE}"


def boot(cloud: Machines, name: str, ends_at: datetime | None) -> None:
    """Start a machine and run its user data."""
    start(cloud, name)
    run(cloud, name, ends_at)


def start(cloud: Machines, name: str) -> None:
    cloud.boot(name, "compute")
    # On EC2 the service needs no variable.
    conf = "/etc/systemd/system.conf.d/endpoint.conf"
    cloud.do(name, f"mkdir -p {conf.rpartition('/')[0]}")
    cloud.put(name, conf, f"[Manager]\nDefaultEnvironment=AWS_EC2_METADATA_SERVICE_ENDPOINT={cloud.imds}\n".encode())


def run(cloud: Machines, name: str, ends_at: datetime | None) -> None:
    """Run the user data, which fails after the step `end`: the bundle has another hash."""
    done = cloud.run(name, render(ends_at))
    assert "muster: failed at fetch" in done.out, done.out


def render(ends_at: datetime | None) -> str:
    return user_data(
        bucket=BUCKET, digest="0" * 16, sha256="0" * 64, region=REGION, role="compute", cluster=CLUSTER,
        python=PYTHON.archives["x86_64"], ends_at=ends_at,
    )  # fmt: skip


def in_hours(hours: float) -> datetime:
    return datetime.now(UTC) + timedelta(hours=hours)


def get_pid(cloud: Machines, name: str) -> str:
    return cloud.do(name, f"systemctl show --value -p MainPID {SERVICE}").out.strip()


def get_command(cloud: Machines, name: str) -> str:
    """Return the command line of the service's main process; "" if it has none, or is just starting again."""
    return cloud.do(name, f"tr '\\0' ' ' </proc/{get_pid(cloud, name)}/cmdline").out.strip()


def is_waiting(cloud: Machines, name: str) -> bool:
    """Return whether the service sleeps until it looks at the clock again."""
    return cloud.do(name, f"pgrep -P {get_pid(cloud, name)} -x sleep").code == 0


@pytest.fixture(scope="module")
def gpu(cloud: Machines) -> str:
    s3 = cloud.moto.client("s3")
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key=parameters.bundle("0" * 64), Body=b"not the bundle")
    boot(cloud, "gpu-1", in_hours(5))
    return "gpu-1"


@pytest.mark.nightly
def test_a_service_that_was_killed_runs_again_and_is_the_last_to_be_killed(cloud: Machines, gpu: str) -> None:
    first = get_pid(cloud, gpu)
    assert first not in ("", "0")
    # The kernel of a container ignores the value; this is what systemd has read.
    assert cloud.do(gpu, f"systemctl show --value -p OOMScoreAdjust {SERVICE}").out.strip() == "-1000"
    cloud.do(gpu, f"kill -9 {first}")
    wait_until(lambda: get_pid(cloud, gpu) not in ("0", first), "the service runs again")
    assert cloud.is_running(gpu)


@pytest.mark.nightly
def test_a_machine_from_an_image_of_another_one_does_not_end(cloud: Machines, gpu: str) -> None:
    machine = cloud.by_address[cloud.addresses[gpu]]
    own, machine.instance = machine.instance, "i-of-the-new-machine"
    cloud.do(gpu, f"{PASSED}; {START_AGAIN}")
    # The service has read the id, and sleeps forever instead of ending the machine.
    wait_until(lambda: get_command(cloud, gpu) == "sleep infinity", "the service does nothing")
    assert cloud.is_running(gpu)
    # Its own user data has an end, or none.
    run(cloud, gpu, in_hours(5))
    assert cloud.do(gpu, f"grep -c ' INSTANCE=i-of-the-new-machine ' {UNIT}").out == "1\n"
    assert cloud.do(gpu, f"systemctl is-active {SERVICE}; systemctl is-enabled {SERVICE}").out == "active\nenabled\n"
    run(cloud, gpu, None)
    assert cloud.do(gpu, f"ls {UNIT} {LINK} 2>/dev/null; systemctl is-active {SERVICE}").out == "inactive\n"
    machine.instance = own
    run(cloud, gpu, in_hours(5))


def test_a_time_that_cannot_be_read_ends_the_machine(cloud: Machines, gpu: str) -> None:
    cloud.do(gpu, f"rm -rf /etc/muster /opt/muster /run/muster; {GARBAGE}; {START_AGAIN}")
    wait_until(lambda: not cloud.is_running(gpu), "the machine has ended")


def test_a_machine_that_starts_after_the_end_ends_at_once(cloud: Machines, gpu: str) -> None:
    del gpu
    start(cloud, "gpu-2")
    # The machine may end before its user data does.
    cloud.run("gpu-2", render(in_hours(-1)))
    wait_until(lambda: not cloud.is_running("gpu-2"), "the machine has ended")


@pytest.mark.nightly
def test_a_machine_that_is_switched_on_after_the_end_ends_again(cloud: Machines, gpu: str) -> None:
    del gpu
    boot(cloud, "gpu-3", in_hours(5))
    # The service that runs still has the old time.
    assert cloud.do("gpu-3", PASSED).code == 0
    cloud.cut_power("gpu-3")
    engine_client.connect().start(names.container(CLUSTER, "gpu-3"))
    wait_until(lambda: not cloud.is_running("gpu-3"), "the machine has ended")


@pytest.mark.nightly
def test_a_machine_that_cannot_read_its_metadata_ends_too(cloud: Machines, gpu: str) -> None:
    del gpu
    boot(cloud, "gpu-4", in_hours(5))
    first = get_pid(cloud, "gpu-4")
    assert cloud.do("gpu-4", f"{UNREADABLE}; {START_AGAIN}").code == 0
    # The service of the changed unit has looked at the clock, and waits: its shell has a child.
    wait_until(lambda: get_pid(cloud, "gpu-4") not in ("", "0", first), "the service runs again")
    wait_until(lambda: is_waiting(cloud, "gpu-4"), "the service waits for the end")
    assert cloud.is_running("gpu-4")
    assert cloud.do("gpu-4", f"{PASSED}; {START_AGAIN}").code == 0
    wait_until(lambda: not cloud.is_running("gpu-4"), "the machine has ended")


@pytest.mark.nightly
def test_a_machine_that_cannot_be_given_its_end_ends_at_once(cloud: Machines, gpu: str) -> None:
    """Nothing else would end it."""
    del gpu
    start(cloud, "gpu-5")
    assert cloud.do("gpu-5", f"mkdir {UNIT}").code == 0
    assert "muster: failed at end: " in cloud.run("gpu-5", render(in_hours(5))).out
    report = cloud.report("compute")
    assert (report.state, report.step, report.instance) == ("failed", "end", "i-gpu-5")
    wait_until(lambda: not cloud.is_running("gpu-5"), "the machine has ended")


@pytest.mark.nightly
def test_an_image_has_no_end(cloud: Machines, gpu: str) -> None:
    del gpu
    boot(cloud, "gpu-6", in_hours(5))
    assert cloud.do("gpu-6", f"test -e {UNIT} && test -L {LINK}").code == 0
    done = cloud.do("gpu-6", CLEANUP_SCRIPT)
    assert done.code == 0, done.out
    assert cloud.do("gpu-6", f"test -e {UNIT} || test -L {LINK}").code == 1
