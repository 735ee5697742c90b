"""The check for running jobs before teardown: on AWS, a queue that does not answer requires --force."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.inventory import NodeSet
from infra.home import Home, StackHome
from infra.targets.aws.target import AwsTarget
from infra.targets.local.target import LocalTarget
from infra.targets.target import Deployment
from muster.commands import teardown_jobs
from muster.commands.teardown_jobs import ClusterJobs, describe_job_ids, find_next_job_id, list_cluster_jobs
from slurm.control.named_jobs import LIST_RUNNING
from tests.infra.targets.aws.build.test_job_queue import SPEC, put_report, start_instance
from tests.moto_server import REGION, Moto
from tests.muster.test_commands_parts import fake_ssh, node

LOCAL = (LocalTarget(), Deployment("c", "s"))
AWS = (AwsTarget(), Deployment(SPEC.name, "s", REGION))


@pytest.fixture
def stack(tmp_path: Path) -> StackHome:
    home = Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s")
    home.folder.mkdir()
    nodes = [node("controller", "controller"), node("gpu-1").model_copy(update={"group": "gpu"})]
    sets = [NodeSet(group="h200", count=2, static=2, cpus=8, memory_mb=1024)]
    parts: dict[str, list[Any]] = {"nodes": nodes, "sets": sets}
    dumped = {key: [part.model_dump(mode="json") for part in members] for key, members in parts.items()}
    home.inventory.write_text(json.dumps({"cluster": "c", "target": "local", **dumped}))
    return home


@pytest.mark.parametrize(
    ("body", "jobs"),
    [
        ("echo '30|alice|train'; echo '31|bob|a|b'", ("30 train (alice)", "31 a|b (bob)")),
        ("echo '7|muster|ready-gpu'", ()),
        ("true", ()),
        ("echo '30|alice|train'; exit 255", ()),
        ("exec sleep 60", ()),
    ],
)
def test_silent_local_cluster_counts_as_idle(
    tmp_path: Path, stack: StackHome, monkeypatch: pytest.MonkeyPatch, body: str, jobs: tuple[str, ...]
) -> None:
    fake_ssh(tmp_path, monkeypatch, body)
    monkeypatch.setattr(teardown_jobs, "_QUERY_TIMEOUT_S", 0.5)
    assert list_cluster_jobs(stack, *LOCAL) == ClusterJobs(jobs)


def test_stack_without_access_files_has_no_jobs(tmp_path: Path) -> None:
    assert list_cluster_jobs(Home.of({"MUSTER_HOME": str(tmp_path)}).stack("s"), *LOCAL) == ClusterJobs()


def test_aws_jobs_are_listed_by_the_controller(aws: Moto, stack: StackHome) -> None:
    start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "ready")
    assert list_cluster_jobs(stack, *AWS) == ClusterJobs()
    aws.answer(LIST_RUNNING, "30|alice|train\n7|muster|ready-h200\n31_2|bob|a|b\n")
    assert list_cluster_jobs(stack, *AWS) == ClusterJobs(("30 train (alice)", "31_2 a|b (bob)"))
    stack.inventory.unlink()
    assert "7 ready-h200 (muster)" in list_cluster_jobs(stack, *AWS).running


def test_next_job_id_is_read_from_the_controller(aws: Moto) -> None:
    start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "ready")
    aws.answer("scontrol show config", "NEXT_JOB_ID             = 31\n")
    assert find_next_job_id(*AWS) == 31
    aws.answer("scontrol show config", "", code=1, err="slurm_load_ctl_conf error")
    assert find_next_job_id(*AWS) is None


@pytest.mark.parametrize(("next_id", "value"), [(31, "{FirstJobId: 31}"), (None, "{FirstJobId: N}")])
def test_receipt_of_kept_storage_says_how_job_ids_continue(next_id: int | None, value: str) -> None:
    (note,) = describe_job_ids(next_id)
    assert note.startswith("job ids start at 1 again on the next cluster: jobs may overwrite files of earlier ones")
    assert f"write `extra: {value}` under `slurm:`" in note


def test_cluster_without_jobs_needs_no_note_about_job_ids() -> None:
    assert describe_job_ids(1) == ()


def test_silent_aws_queue_counts_as_unknown(aws: Moto, stack: StackHome) -> None:
    controller = start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "ready")
    aws.answer(LIST_RUNNING, "", code=1, err="slurm_load_jobs error: Unable to contact slurm controller")
    assert list_cluster_jobs(stack, *AWS).unknown == (
        "controller: the job queue does not answer: slurm_load_jobs error: Unable to contact slurm controller"
    )
    aws.answer(LIST_RUNNING, "30|alice|train\n" * 2000)
    assert "longer than the 24000 characters" in list_cluster_jobs(stack, *AWS).unknown
    aws.client("ec2").stop_instances(InstanceIds=[controller])
    assert list_cluster_jobs(stack, *AWS).unknown == "cannot check whether jobs are running: the controller is stopped"
    aws.fail("DescribeInstances", "UnauthorizedOperation")
    denied = f"the job queue cannot be queried in {REGION}: UnauthorizedOperation"
    assert list_cluster_jobs(stack, *AWS).unknown == denied


def test_cluster_without_compute_nodes_has_no_jobs(aws: Moto, stack: StackHome) -> None:
    start_instance(aws, "controller")
    assert list_cluster_jobs(stack, *AWS) == ClusterJobs()
    assert aws.of("SendCommand") == []


def test_refusal_names_the_running_jobs_and_the_fix() -> None:
    stop = ClusterJobs(("30 train (alice)",)).refusal("x")
    assert stop is not None
    assert stop.what == "stack x has 1 running job: 30 train (alice); nothing was removed"
    assert "`make teardown FORCE=1 STACK=x`" in stop.fix
    assert ClusterJobs(("30 a (b)", "31 a (b)")).notes == ("2 running jobs ended: 30 a (b), 31 a (b)",)
    assert (ClusterJobs().refusal("x"), ClusterJobs().notes) == (None, ())


def test_of_very_many_jobs_some_are_named_and_all_are_counted(aws: Moto, stack: StackHome) -> None:
    start_instance(aws, "controller")
    start_instance(aws, "compute")
    put_report(aws, "ready")
    aws.answer(LIST_RUNNING, "".join(f"{number}|alice|train\n" for number in range(7)) + "+9993\n")
    jobs = list_cluster_jobs(stack, *AWS)
    stop = jobs.refusal("x")
    assert stop is not None
    first = ", ".join(f"{number} train (alice)" for number in range(5))
    assert stop.what == f"stack x has 10000 running jobs: {first} and 9995 more; nothing was removed"
    listed = ", ".join(f"{number} train (alice)" for number in range(7))
    assert jobs.notes == (f"10000 running jobs ended: {listed} and 9993 more",)


def test_unknown_jobs_require_force() -> None:
    unknown = ClusterJobs(unknown="the queue is silent")
    stop = unknown.refusal("x")
    assert stop is not None
    assert stop.what == "the queue is silent; nothing was removed"
    assert "`make teardown FORCE=1 STACK=x`" in stop.fix
    assert unknown.notes == ("removed by force: the queue is silent",)
