"""`muster submit`: warnings about its environment, and following a job."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.inventory import Inventory, Node, NodeSet
from infra import shell
from infra.engine.stop import Stop
from infra.home import Home
from muster.commands import submit
from tests.muster.test_commands_parts import fake_ssh

REPO = Path(__file__).parents[2]


def test_update_reports_changes_of_state_or_reason() -> None:
    job = submit.FollowedJob("7")
    assert job.update("state|PENDING|Resources||0:0")
    assert not job.update("log|/shared/home/a/jobs/x | y.out")
    assert job.log == "/shared/home/a/jobs/x | y.out"
    assert not job.update("log|/shared/home/a/jobs/x.out")
    assert not job.update("offset|42")
    assert job.update("state|RUNNING|None|gpu-1|0:0")
    assert job.update("state|FAILED|NonZeroExitCode|gpu-1|3:0")
    assert (job.state, job.exit_code, job.log, job.offset) == ("FAILED", "3:0", "/shared/home/a/jobs/x.out", 42)


@pytest.mark.parametrize(("held_s", "ends_well"), [(0.0, True), (60.0, False)])
def test_only_consecutive_failures_stop_following(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_s: float, ends_well: bool
) -> None:
    """Eight SSH sessions break and the ninth sees the job end; only sessions that lasted reset the failure count."""
    count = tmp_path / "count"
    fake_ssh(tmp_path, monkeypatch, f'echo x >> {count}; [ "$(wc -l < {count})" -ge 9 ] || exit 255')
    monkeypatch.setattr(submit, "_STABLE_CONNECTION_S", held_s)
    monkeypatch.setattr(submit, "_RECONNECT_DELAY_S", 0.0)
    stack = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    if ends_well:
        submit.follow(stack, "login", submit.FollowedJob("7"))
        assert len(count.read_text().splitlines()) == 9
    else:
        with pytest.raises(Stop, match="job 7 can no longer be followed"):
            submit.follow(stack, "login", submit.FollowedJob("7"))


def test_following_uses_batch_mode_and_a_connect_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, f'printf "%s\\n" "$@" > {tmp_path}/given')
    submit.follow(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s"), "login", submit.FollowedJob("7"))
    assert {"BatchMode=yes", "ConnectTimeout=5"} <= set((tmp_path / "given").read_text().splitlines())


def test_harmful_variables_are_reported_for_the_cluster_fabric() -> None:
    node = Node(name="gpu-1", role="compute", address="10.0.0.1", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
    job = "export NCCL_NET=Socket\nexport NCCL_ALGO=ring\n"
    tuner = "harmful  line 2: NCCL_ALGO=ring: switches the tuner of NCCL and of the EFA plugin off"
    local = Inventory(cluster="c", target="local", nodes=(node,))
    assert submit.check_job_environment(job, local) == [tuner]
    sets = (NodeSet(group="gpu", count=2, static=2, cpus=8, memory_mb=1024, fabric="efa"),)
    cloud = Inventory(cluster="c", target="aws", nodes=(), sets=sets)
    tcp = "harmful  line 1: NCCL_NET=Socket: the job would use TCP even though the nodes have a faster fabric"
    assert submit.check_job_environment(job, cloud) == [tcp, tuner]


def test_output_and_control_lines_are_separated_even_within_a_line() -> None:
    class Process:
        stdout = io.BytesIO(
            b"\x1estate|PENDING|Resources||0:0\nhello\nhalf\x1eoffset|10\n\x1estate|RUNNING||gpu-1|0:0\n"
        )

    assert list(submit.split_output(cast("Any", Process))) == [
        (b"", "state|PENDING|Resources||0:0"),
        (b"hello\n", ""),
        (b"half", "offset|10"),
        (b"", "state|RUNNING||gpu-1|0:0"),
    ]


def test_hanging_login_node_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_ssh(tmp_path, monkeypatch, "exec sleep 60")
    monkeypatch.setattr(shell, "TIMEOUT_S", 0.2)
    job = tmp_path / "a.sbatch"
    job.write_text("#!/bin/sh\n")
    with pytest.raises(Stop, match="did not answer") as stop:
        submit.send(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s"), "login", job, [])
    assert "make status STACK=s" in stop.value.fix


@pytest.mark.parametrize(("state", "expected"), [("PENDING", "waiting"), ("RUNNING", "running")])
def test_interruption_names_the_state_of_the_job(
    state: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    fake_ssh(tmp_path, monkeypatch, "echo 7")
    folder = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("local")
    folder.folder.mkdir()
    login = Node(name="c", role="controller", address="a", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
    folder.inventory.write_text(Inventory(cluster="c", target="local", nodes=(login,)).model_dump_json())

    def interrupt(_stack: object, _login: str, followed: submit.FollowedJob) -> None:
        followed.update(f"state|{state}|Resources||0:0")
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "follow", interrupt)
    with pytest.raises(Stop):
        submit.submit("local", "slurm/jobs/smoke.sbatch", [])
    assert f"job 7 is still {expected}; only its log is no longer followed" in capfd.readouterr().out
