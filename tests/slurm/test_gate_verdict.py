"""The gate's verdict: which node, step and line are named for the output of Slurm and the ranks."""

from __future__ import annotations

import json

import pytest

from slurm.control.condense import condense_ranks
from slurm.control.nodes import parse_nodes
from slurm.gate_verdict import find_unfit_node, judge_job, parse_ranks

HOSTS = ("gpu-1", "gpu-2")
IDLE = (
    "CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=0.75 RealMemory=1920 AllocMem=0 FreeMem=15238 State=IDLE ThreadsPerCore=1"
)


def report(host: str, *stages: str, rank: int = 0, **last: object) -> str:
    lines = [{"host": host, "rank": rank, "stage": stage} for stage in stages]
    lines[-1] |= last
    return "".join(f"muster-gate {json.dumps(line)}\n" for line in lines)


def passed(host: str, total: float = 3.0) -> str:
    return report(host, "started", "imported", "joined", "passed", sum=total)


def test_every_host_passed():
    assert judge_job(HOSTS, 0, passed("gpu-1") + passed("gpu-2")) is None


def test_a_single_node_passes():
    assert judge_job(("big-1",), 0, passed("big-1", 1.0)) is None


def test_unrelated_lines_are_ignored():
    output = "srun: job 12 queued\n" + passed("gpu-1") + "muster-gate {broken\n0: " + passed("gpu-2")
    assert judge_job(HOSTS, 0, output) is None


CASES = {
    "a wrong sum": (
        0,
        passed("gpu-1") + passed("gpu-2", 2.0),
        "not ready: node gpu-2, step all-reduce: the sum is 2 instead of 3.",
    ),
    "a rank that reports a wrong vector": (
        1,
        passed("gpu-1")
        + report("gpu-2", "started", "imported", "joined", "failed", error="all-reduce of a vector is wrong"),
        "not ready: node gpu-2, step all-reduce: all-reduce of a vector is wrong.",
    ),
    "a rank that cannot compile, while the others wait for it": (
        1,
        report(
            "gpu-1", "started", "imported", "compiling", "compiled", "failed", error="did not join within 8 s: rank 1"
        )
        + report("gpu-2", "started", "imported", "compiling", "failed", error="torch.compile needs a C compiler"),
        "not ready: node gpu-2, step compiling for the GPU: torch.compile needs a C compiler.",
    ),
    "a host that was not requested": (
        0,
        passed("gpu-1") + passed("cpu-9"),
        "not ready: node cpu-9, step job: ran there, but only gpu-1, gpu-2 were requested.",
    ),
    "a rank that never started, with srun's reason": (
        1,
        report("gpu-1", "started", "imported")
        + "srun: error: Task launch for StepId=17.0 failed on node gpu-2: Communication connection failure\n"
        + "srun: error: Application launch failed: Communication connection failure\n",
        "not ready: node gpu-2, step job start: "
        "srun: error: Task launch for StepId=17.0 failed on node gpu-2: Communication connection failure.",
    ),
    "a rank without a report, named by its peer": (
        1,
        report("gpu-1", "started", "imported", "failed", error="did not join within 25 s: rank 1")
        + report("gpu-2", "started", "imported")
        + "srun: error: gpu-2: task 1: Terminated\n",
        "not ready: node gpu-2, step joining the fabric: "
        "no report from it; gpu-1 reports: did not join within 25 s: rank 1.",
    ),
    "a rank that cannot reach the first rank, which timed out too": (
        1,
        report("gpu-1", "started", "imported", "failed", error="did not join within 25 s: rank 1")
        + report("gpu-2", "started", "imported", "failed", error="The client socket has timed out after 25000ms"),
        "not ready: node gpu-2, step joining the fabric: The client socket has timed out after 25000ms.",
    ),
    "torch cannot be imported on one node": (
        1,
        report("gpu-1", "started", "imported")
        + report("gpu-2", "started")
        + "ImportError: libtorch_cpu.so: cannot open shared object file: No such file or directory\n"
        + "srun: error: gpu-2: task 1: Exited with exit code 1\n",
        "not ready: node gpu-2, step import torch: "
        "ImportError: libtorch_cpu.so: cannot open shared object file: No such file or directory.",
    ),
    "the shared bundle lacks the trainer": (
        1,
        "/shared/env/bin/python: Error while finding module specification for 'trainer.gate' "
        "(ModuleNotFoundError: No module named 'trainer')\n"
        "srun: error: gpu-1: task 0: Exited with exit code 1\n"
        "slurmstepd: error: *** STEP 1.0 ON gpu-1 CANCELLED AT 2026-11-19T02:33:52 DUE TO TASK FAILURE ***\n",
        "not ready: node gpu-1, gpu-2, step job start: /shared/env/bin/python: Error while finding module "
        "specification for 'trainer.gate' (ModuleNotFoundError: No module named 'trainer').",
    ),
    "no rank started": (
        1,
        "srun: error: Unable to allocate resources: Invalid account or account/partition combination specified\n",
        "not ready: node gpu-1, gpu-2, step job start: srun: error: Unable to allocate resources: "
        "Invalid account or account/partition combination specified.",
    ),
    "srun printed nothing": (7, "", "not ready: node gpu-1, gpu-2, step job start: srun exited with 7 without output."),
    "a hang": (
        124,
        report("gpu-1", "started", "imported", "joined") + report("gpu-2", "started", "imported"),
        "not ready: node gpu-2, step joining the fabric: no further output within 35 s.",
    ),
    "a hang before the first report": (
        124,
        "srun: job 4 queued and waiting for resources\n",
        "not ready: node gpu-1, step job start: no further output within 35 s; "
        "last line: srun: job 4 queued and waiting for resources.",
    ),
    "a node that dies during the job": (
        1,
        report("gpu-1", "started", "imported", "joined", "failed", error="Connection closed by peer [10.88.0.5]:4711")
        + report("gpu-2", "started", "imported", "joined")
        + "srun: error: Node failure on gpu-2\n",
        "not ready: node gpu-2, step all-reduce: srun: error: Node failure on gpu-2.",
    ),
    "all ranks passed but the job failed": (
        1,
        passed("gpu-1") + passed("gpu-2") + "slurmstepd: error: gpu-1: cannot remove its cgroup\n",
        "not ready: node gpu-1, step end of the job: slurmstepd: error: gpu-1: cannot remove its cgroup.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_failure_names_node_step_and_line(case: str):
    code, output, message = CASES[case]
    problem = judge_job(HOSTS, code, output, deadline_s=35)
    assert str(problem) == message


def test_the_missing_rank_is_named_when_the_first_to_give_up_ends_all_others():
    """gpu-3 gives up and ends the job before gpu-1, which is as far as gpu-2, can say whom it waited for."""
    output = (
        report("gpu-1", "started", "imported")
        + report("gpu-2", "started", "imported", rank=1)
        + report(
            "gpu-3", "started", "imported", "failed", rank=2, error="did not join within 35 s: rank 1", missing=[1]
        )
    )
    problem = judge_job(("gpu-1", "gpu-2", "gpu-3"), 1, output)
    assert str(problem) == (
        "not ready: node gpu-2, step joining the fabric: "
        "no report from it; gpu-3 reports: did not join within 35 s: rank 1."
    )


def test_a_node_without_any_report_is_named_before_a_missing_rank():
    """Both did not join; the rank of gpu-3 is unknown, because its process never started."""
    output = report("gpu-2", "started", "imported", rank=1) + report(
        "gpu-1", "started", "imported", "failed", error="did not join within 35 s: rank 1, rank 2", missing=[1, 2]
    )
    problem = judge_job(("gpu-1", "gpu-2", "gpu-3"), 1, output)
    assert problem is not None
    assert (problem.node, problem.step) == ("gpu-3", "job start")


CUT_OFF = {
    # gpu-2 gives up first and ends the job, before gpu-1 can say which rank it waited for.
    "a cut off rank that ends the job": (
        report("gpu-1", "started", "imported", "connected")
        + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
        + report("gpu-2", "failed", rank=1, error="no answer from gpu-1 (10.88.0.3:20001)")
        + report("gpu-3", "started", "imported", "connected", rank=2),
        "gpu-2",
    ),
    "a slow rank that the first one waits for too": (
        report("gpu-1", "started", "imported", "connected")
        + report("gpu-1", "failed", error="did not join within 35 s: rank 1, rank 2", missing=[1, 2])
        + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
        + report("gpu-3", "started", rank=2),
        "gpu-2",
    ),
    "a first rank that is as slow": (
        report("gpu-1", "started")
        + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
        + report("gpu-3", "started", "imported", "waiting", rank=2),
        "gpu-2",
    ),
    "a rank that had no time to import torch": (
        report("gpu-1", "started", "imported", "connected")
        + report("gpu-2", "started", rank=1, unanswered=True)
        + report("gpu-3", "started", rank=2),
        "gpu-2",
    ),
    "a first node that no other reaches": (
        report("gpu-1", "started", "imported", "connected")
        + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
        + report("gpu-3", "started", "imported", "waiting", rank=2, unanswered=True),
        "gpu-1",
    ),
    "a rank that is answered in the end": (
        report("gpu-1", "started", "imported", "connected")
        + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
        + report("gpu-2", "waiting", "connected", rank=1)
        + report("gpu-3", "started", rank=2),
        "gpu-3",
    ),
}


@pytest.mark.parametrize("case", CUT_OFF)
def test_a_rank_that_is_cut_off_is_named_before_one_that_is_slow(case: str) -> None:
    output, host = CUT_OFF[case]
    problem = judge_job(("gpu-1", "gpu-2", "gpu-3"), 124, condense_ranks(output), deadline_s=35)
    assert problem is not None
    assert problem.node == host


def test_a_rank_that_is_cut_off_is_reported_with_a_fix() -> None:
    output, _ = CUT_OFF["a cut off rank that ends the job"]
    assert str(judge_job(("gpu-1", "gpu-2", "gpu-3"), 1, output)) == (
        "not ready: node gpu-2, step joining the fabric: gpu-1 does not answer it. Fix: check the node's network, and "
        "that no firewall or security group blocks TCP between the nodes."
    )


@pytest.mark.parametrize(
    ("stages", "host"),
    [
        (("started", "imported", "connected"), "gpu-2"),
        # Slow, not cut off: it has not tried to connect yet.
        (("started",), "gpu-2"),
        (("started", "imported", "compiling"), "gpu-2"),
        (("started", "imported"), "gpu-1"),
        (("started", "imported", "compiling", "compiled"), "gpu-1"),
        ((), "gpu-1"),
    ],
)
def test_of_two_nodes_the_first_is_cut_off_if_its_rank_cannot_connect_to_itself(
    stages: tuple[str, ...], host: str
) -> None:
    first = report("gpu-1", *stages) if stages else ""
    output = first + report("gpu-2", "started", "imported", "waiting", rank=1, unanswered=True)
    problem = judge_job(HOSTS, 124, output)
    assert problem is not None
    assert problem.node == host


def test_a_failure_keeps_the_stage_it_happened_in():
    ranks = parse_ranks(report("gpu-1", "started", "imported", "failed", error="no route", rank=3))
    assert (ranks["gpu-1"].stage, ranks["gpu-1"].error, ranks["gpu-1"].rank) == ("imported", "no route", 3)


def test_the_reason_of_a_drained_node_is_reported():
    text = (
        f"NodeName=gpu-1 {IDLE}\nNodeName=gpu-2 State=IDLE+DRAIN Weight=1 Reason=Kill task failed [slurm@2026-11-15T03]"
    )
    problem = find_unfit_node(HOSTS, parse_nodes(text))
    assert problem is not None
    assert (problem.node, problem.step) == ("gpu-2", "registration")
    assert problem.line == "slurmctld reports it as idle+drain (Kill task failed)"
    assert "state=resume" in problem.fix


def test_a_node_unknown_to_slurm_is_named():
    problem = find_unfit_node(HOSTS, parse_nodes(f"NodeName=gpu-1 {IDLE}\n"))
    assert str(problem).startswith("not ready: node gpu-2, step registration: slurmctld does not know it.")


def test_a_node_that_a_person_drained_is_not_an_error():
    text = f"NodeName=gpu-1 {IDLE}\nNodeName=gpu-2 State=IDLE+DRAIN Weight=1 Reason=bad fan, row=7 [root@2026-11-15T03]"
    assert find_unfit_node(HOSTS, parse_nodes(text)) is None
