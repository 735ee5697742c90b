"""train.sbatch with stubs for the Slurm commands: how torchrun is started, and what happens when the step ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

JOB = Path(__file__).resolve().parents[2] / "slurm" / "jobs" / "train.sbatch"

STUBS = {
    "scontrol": """echo "scontrol $*" >>"$CALLS"
        case "$1 $2" in
        "show hostnames") printf '%s\\n' gpu-1 gpu-2 ;;
        "show node") echo "NodeName=$3 Arch=x86_64 NodeAddr=${NODE_ADDR-10.88.0.3} NodeHostName=$3" ;;
        "show partition") echo "PartitionName=$3 MaxTime=UNLIMITED PreemptMode=${PREEMPT_MODE-OFF} State=UP" ;;
        "show job")
            state=$(cat "$STATES/$3" 2>/dev/null || echo RUNNING)
            echo "JobId=$3 JobName=x JobState=$state Reason=None PreemptTime=${PREEMPTED-None}" \\
                "ExcNodeList=$(cat "$STATES/excluded" 2>/dev/null || echo "(null)") Nice=0" ;;
        update*) echo "${3#ExcNodeList=}" >"$STATES/excluded" ;;
        "requeue "*) [ -z "${REQUEUE_FAILS:-}" ] || exit 1; kill -TERM $PPID ;;
        esac""",
    "getent": 'case "$2" in [0-9]*) echo "$2 STREAM $2" ;; localhost*) echo "127.0.0.1 STREAM x" ;; *) exit 2 ;; esac',
    "ip": 'echo "$5 via 10.88.0.1 dev eth0 src ${LOCAL_ADDR-10.88.0.$((3 + SLURM_NODEID))} uid 0"',
    "ss": '[ "$SLURMD_NODENAME" = "${CUT_OFF:-}" ] || echo ESTAB',
    "sinfo": 'case "$*" in *--partition=*) printf "%s\\n" "${PARTITION:-}" ;; *) echo "${DOWN:-}" ;; esac',
    # Runs the step on both nodes, one after the other, and fails if it fails on either.
    "srun": """echo "srun $*"
        while [ "$1" != bash ]; do shift; done
        code=0
        for id in 0 1; do SLURM_NODEID=$id SLURMD_NODENAME=gpu-$((id + 1)) "$@" || code=1; done
        exit $code""",
    # The trainer: runs for TICKS, then writes an outcome; a stop file makes it stop, and its text becomes the reason.
    # It does not end before the job has recorded that its node has joined, which real ones do within a second.
    "python": """echo "$SLURMD_NODENAME: $*"
        [ "$SLURMD_NODENAME" = "${CUT_OFF:-}" ] || until [ -e "$joined/$SLURMD_NODENAME" ]; do sleep 0.01; done
        [ "$SLURM_NODEID" = 0 ] || exit ${TORCHRUN:-0}
        for _ in $(seq "${TICKS:-0}"); do sleep 0.05; [ ! -e "$run/stop" ] || OUTCOME=requeue; done
        [ ! -e "$run/stop" ] || REASON=$(cat "$run/stop")
        [ -z "${CHECKPOINT:-}" ] || mkdir -p "$run/checkpoints/step-$CHECKPOINT"
        [ -z "${OUTCOME:-}" ] || printf '{"outcome": "%s", "reason": "%s", "step": 7, "time": 1.5%s}\\n' \\
            "$OUTCOME" "${REASON:-a reason, with a comma}" "${FAILURE:-}" >"$MUSTER_OUTCOME_FILE"
        exit ${TORCHRUN:-0}""",
}

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    folders = dict.fromkeys(STUBS, tmp_path / "bin") | {"python": tmp_path / "root" / "env" / "bin"}
    for name, body in STUBS.items():
        folders[name].mkdir(parents=True, exist_ok=True)
        stub = folders[name] / name
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    (tmp_path / "states").mkdir()

    def begin(*arguments: str, **env: str) -> subprocess.Popen[str]:
        base = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "MUSTER_ROOT": str(tmp_path / "root"),
            "CALLS": str(tmp_path / "calls"),
            "STATES": str(tmp_path / "states"),
            "SLURM_SUBMIT_DIR": str(tmp_path),
            "SLURM_JOB_ID": "12345",
            "SLURM_JOB_NAME": "train",
            "SLURM_JOB_PARTITION": "gpu",
            "SLURM_JOB_NODELIST": "gpu-[1-2]",
            "SLURM_NNODES": "2",
            "SLURM_CPUS_ON_NODE": "2",
            "SLURM_JOB_END_TIME": str(int(time.time()) + 100),
        }
        command = ["bash", str(JOB), *(arguments or ("tiny-llama",))]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=base | env, stdout=pipe, stderr=pipe, text=True, cwd=tmp_path)

    return begin


@pytest.fixture
def job(start: Start) -> Run:
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return finish(start(*arguments, **env))

    return run


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "train-12345"


def is_requeued(tmp_path: Path) -> bool:
    return "scontrol requeue 12345" in (tmp_path / "calls").read_text()


def send_signal(process: subprocess.Popen[str], number: int) -> subprocess.CompletedProcess[str]:
    """Send a signal to the job while its step is running, wait for the job, and return it."""
    assert process.stdout is not None
    seen = ""
    while "gpu-1: " not in seen:
        seen += process.stdout.readline()
    process.send_signal(number)
    done = finish(process)
    return subprocess.CompletedProcess(done.args, done.returncode, seen + done.stdout, done.stderr)


def test_each_node_starts_the_trainer_with_its_own_address(job: Run, run_folder: Path) -> None:
    done = job("llama.yaml", "optimizer.lr=1e-4", "name=two words", OUTCOME="finished")
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if line.startswith("gpu-")]
    for line, address, is_host in ((first, "10.88.0.3", "true"), (second, "10.88.0.4", "false")):
        assert f"--rdzv-endpoint=10.88.0.3:22345 --local-addr={address} --rdzv-conf=is_host={is_host}," in line
        assert "--nnodes=2:2 --nproc-per-node=2 --max-restarts=3 " in line
        assert "--rdzv-id=12345.0 " in line
        assert line.endswith(f"-m trainer llama.yaml optimizer.lr=1e-4 name=two words run.folder={run_folder}")


def test_a_finished_run_is_not_requeued_even_if_torchrun_fails(job: Run, tmp_path: Path) -> None:
    done = job(OUTCOME="finished", TORCHRUN="1")
    assert done.returncode == 0
    assert "train: finished: a reason, with a comma at step 7" in done.stdout
    assert not is_requeued(tmp_path)


@pytest.mark.parametrize(
    ("outcome", "status", "message"),
    [
        ("stopped", 77, "train: stopped: a reason, with a comma at step 7. Continue with RUN_FOLDER="),
        ("broken", 1, "train: BROKEN: a reason, with a comma at step 7"),
        ("bad_input", 2, "train: FAILED: a reason, with a comma at step 7"),
    ],
)
def test_outcomes_that_are_not_requeued(job: Run, tmp_path: Path, outcome: str, status: int, message: str) -> None:
    done = job(OUTCOME=outcome)
    assert done.returncode == status
    assert message in done.stdout + done.stderr
    assert not is_requeued(tmp_path)


def test_a_requeue_is_reported_with_its_reason(job: Run, tmp_path: Path, run_folder: Path) -> None:
    done = job(OUTCOME="requeue", REASON="time limit", CHECKPOINT="00000007")
    assert done.returncode == 0, done.stderr
    assert "train: time limit at step 7; newest checkpoint: 00000007; requeue 1 of at most 100" in done.stdout
    assert is_requeued(tmp_path)
    assert "12345 step=00000007 requeue=1 " in (run_folder / "requeues").read_text()


def test_a_run_that_only_received_sigterm_is_requeued(job: Run, tmp_path: Path) -> None:
    assert job(OUTCOME="terminated", TORCHRUN="1").returncode == 0
    assert is_requeued(tmp_path)


def test_a_run_that_failed_is_requeued_with_the_first_cause(job: Run, tmp_path: Path) -> None:
    done = job(OUTCOME="failed", TORCHRUN="1", REASON="rank 3 on gpu-2: device: CUDA error")
    assert done.returncode == 0
    assert "train: rank 3 on gpu-2: device: CUDA error at step 7; newest checkpoint: none" in done.stdout
    assert is_requeued(tmp_path)


def test_a_lost_node_is_named_and_the_job_is_requeued(job: Run, tmp_path: Path) -> None:
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", DOWN="gpu-2 down*")
    assert done.returncode == 0
    assert "train: gpu-2 did not join: it never reached gpu-1 at 10.88.0.3:22345" in done.stdout
    assert "gpu-1 did not join" not in done.stdout
    assert "train: gpu-2 is down*" in done.stdout
    assert (
        "train: the step ended with 1 and no outcome: a rank or a node was lost; newest checkpoint: none" in done.stdout
    )
    assert is_requeued(tmp_path)


def test_no_process_waits_for_a_lost_node_after_the_job(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CUT_OFF="gpu-2")
    deadline = time.monotonic() + 20
    while left := list_processes(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def list_processes(tmp_path: Path) -> list[str]:
    """Return the processes that have the test's own folder in their environment."""
    mark, commands = f"CALLS={tmp_path}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environment.read_bytes():
                commands.append((environment.parent / "cmdline").read_text())
    return commands


def test_requeues_without_progress_stop_after_three(job: Run, tmp_path: Path) -> None:
    """The first requeue is at a new checkpoint, such as that of the time limit; then three attempts are lost."""
    for count in range(3):
        assert job(TORCHRUN="1", CHECKPOINT="00000010", SLURM_RESTART_COUNT=str(count)).returncode == 0
    (tmp_path / "calls").unlink()
    done = job(TORCHRUN="1", SLURM_RESTART_COUNT="3")
    assert done.returncode == 1
    expected = "not requeued: no newer checkpoint than 00000010 in 3 requeues (MAX_STALLED_REQUEUES=3)"
    assert expected in done.stderr
    assert not is_requeued(tmp_path)


def test_a_newer_checkpoint_renews_the_requeues_without_progress(job: Run) -> None:
    for count, step in enumerate(("00000010", "00000010", "00000020", "00000020")):
        variables = {"SLURM_RESTART_COUNT": str(count), "MAX_STALLED_REQUEUES": "2"}
        assert job(TORCHRUN="1", CHECKPOINT=step, **variables).returncode == 0
    done = job(TORCHRUN="1", SLURM_RESTART_COUNT="4", MAX_STALLED_REQUEUES="2")
    assert "no newer checkpoint than 00000020 in 2 requeues (MAX_STALLED_REQUEUES=2)" in done.stderr


ENOUGH_NODES = "gpu-1 idle\ngpu-2 alloc\ngpu-3 idle~\ngpu-3 idle~\ngpu-4 down*"


def test_a_lost_node_is_excluded_from_the_next_attempt_only(job: Run, tmp_path: Path) -> None:
    """Slurm may still consider a node that did not join healthy, and would use it again."""
    excluded = tmp_path / "states" / "excluded"
    excluded.write_text("gpu-9")
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", PARTITION=ENOUGH_NODES)
    assert "train: the next attempt excludes gpu-9,gpu-2" in done.stdout
    assert excluded.read_text() == "gpu-9,gpu-2\n"
    calls = (tmp_path / "calls").read_text()
    assert calls.index("scontrol requeue") < calls.index("scontrol update JobId=12345 ExcNodeList=gpu-9,gpu-2")
    job(OUTCOME="requeue", SLURM_RESTART_COUNT="1", PARTITION=ENOUGH_NODES)
    assert excluded.read_text() == "gpu-9\n"


@pytest.mark.parametrize(("cause", "expected"), [("device", "gpu-2\n"), ("storage", "")])
def test_a_node_whose_gpu_failed_is_excluded_too(job: Run, tmp_path: Path, cause: str, expected: str) -> None:
    failure = json.dumps(
        {"cause": cause, "rank": 3, "host": "gpu-2", "error": "AcceleratorError", "place": "", "fix": ""}
    )
    done = job(OUTCOME="failed", TORCHRUN="1", FAILURE=f', "failure": {failure}', PARTITION=ENOUGH_NODES)
    assert done.returncode == 0
    excluded = tmp_path / "states" / "excluded"
    assert (excluded.read_text() if excluded.exists() else "") == expected
    assert ("train: a GPU of gpu-2 failed" in done.stdout) == (cause == "device")


def test_a_lost_node_is_not_excluded_if_the_job_could_not_start_without_it(job: Run, tmp_path: Path) -> None:
    done = job(TORCHRUN="1", CUT_OFF="gpu-2", PARTITION="gpu-1 idle\ngpu-2 idle\ngpu-3 drain")
    assert done.returncode == 0
    assert "train: the partition has too few other nodes in service to exclude gpu-2" in done.stdout
    assert not (tmp_path / "states" / "excluded").read_text().strip()


def test_requeues_continue_up_to_the_limit_while_there_is_progress(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CHECKPOINT="00000010")
    assert job(TORCHRUN="1", CHECKPOINT="00000020", SLURM_RESTART_COUNT="1").returncode == 0
    (tmp_path / "calls").unlink()
    done = job(TORCHRUN="1", CHECKPOINT="00000030", SLURM_RESTART_COUNT="2", MAX_REQUEUES="2")
    assert done.returncode == 1
    assert "not requeued: already requeued 2 times (MAX_REQUEUES=2)" in done.stderr
    assert not is_requeued(tmp_path)


def test_the_requeues_of_another_job_in_the_same_folder_do_not_count(job: Run, tmp_path: Path) -> None:
    job(TORCHRUN="1", CHECKPOINT="00000010", RUN_FOLDER="again")
    (tmp_path / "states" / "12345").write_text("FAILED")
    assert job(TORCHRUN="1", RUN_FOLDER="again", SLURM_JOB_ID="777").returncode == 0
    assert "scontrol requeue 777" in (tmp_path / "calls").read_text()


def test_a_requeue_that_slurm_rejects_is_reported(job: Run) -> None:
    done = job(OUTCOME="requeue", REQUEUE_FAILS="1")
    assert done.returncode == 1
    assert "train: BROKEN: scontrol requeue failed; continue with RUN_FOLDER=" in done.stderr


@pytest.mark.parametrize(("seconds_left", "reason"), [(100, "time limit"), (5000, "preempted")])
def test_a_warning_signal_stops_the_run_and_requeues_the_job(
    start: Start, tmp_path: Path, seconds_left: int, reason: str
) -> None:
    end = str(int(time.time()) + seconds_left)
    done = send_signal(start(TICKS="20", OUTCOME="finished", SLURM_JOB_END_TIME=end), signal.SIGUSR1)
    assert f"train: stopping ({reason})" in done.stdout
    assert f"train: {reason} at step 7; newest checkpoint: none; requeue 1" in done.stdout
    assert done.returncode == 0
    assert is_requeued(tmp_path)


def test_a_short_job_is_not_stopped_by_a_warning_at_its_start(start: Start, tmp_path: Path) -> None:
    now = int(time.time())
    times = {"SLURM_JOB_START_TIME": str(now - 1), "SLURM_JOB_END_TIME": str(now + 59)}
    done = send_signal(start(OUTCOME="finished", TICKS="10", **times), signal.SIGUSR1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the ranks stop when it is near" in done.stdout
    assert not is_requeued(tmp_path)


def test_a_short_job_that_is_preempted_stops_at_once(start: Start, tmp_path: Path) -> None:
    now = int(time.time())
    times = {"SLURM_JOB_START_TIME": str(now - 1), "SLURM_JOB_END_TIME": str(now + 59)}
    done = send_signal(start(TICKS="20", PREEMPTED="2026-11-15T09:50:04", **times), signal.SIGUSR1)
    assert "train: stopping (preempted)" in done.stdout
    assert is_requeued(tmp_path)


@pytest.mark.parametrize(("mode", "by_script"), [("REQUEUE", False), ("CANCEL", True)])
def test_a_preempted_job_is_requeued_once(start: Start, tmp_path: Path, mode: str, by_script: bool) -> None:
    end, preempted = str(int(time.time()) + 5000), "2026-11-15T10:37:06"
    process = start(TICKS="20", PREEMPTED=preempted, PREEMPT_MODE=mode, SLURM_JOB_END_TIME=end)
    done = send_signal(process, signal.SIGUSR1)
    assert done.returncode == 0, done.stderr
    assert "train: preempted at step 7; newest checkpoint: none; requeue 1 of at most 100" in done.stdout
    assert is_requeued(tmp_path) == by_script


def test_a_job_that_is_preempted_again_without_progress_is_requeued(job: Run, tmp_path: Path) -> None:
    for count in ("0", "1", "2"):
        done = job(OUTCOME="requeue", REASON="preempted", CHECKPOINT="00000010", SLURM_RESTART_COUNT=count)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "calls").read_text().count("scontrol requeue 12345") == 3


def test_a_preempted_job_that_only_received_sigterm_reports_the_preemption(job: Run) -> None:
    variables = {"OUTCOME": "terminated", "REASON": "terminated by a signal", "PREEMPTED": "2026-11-15T10:17:45"}
    for _ in range(2):
        done = job(**variables, CHECKPOINT="00000010")
        expected = "train: preempted: terminated by a signal at step 7; newest checkpoint: 00000010; requeue 1"
        assert expected in done.stdout


def test_a_preemption_does_not_count_as_lack_of_progress(job: Run) -> None:
    job(OUTCOME="requeue", REASON="preempted", CHECKPOINT="00000010")
    assert job(TORCHRUN="1", SLURM_RESTART_COUNT="1", MAX_STALLED_REQUEUES="1").returncode == 0
    assert job(TORCHRUN="1", SLURM_RESTART_COUNT="2", MAX_STALLED_REQUEUES="1").returncode == 1


def test_a_warning_does_not_replace_a_persons_stop_file(start: Start, run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    (run_folder / "stop").write_text("enough\n")
    send_signal(start(OUTCOME="finished", TICKS="10"), signal.SIGUSR1)
    assert (run_folder / "stop").read_text() == "enough\n"


def test_a_job_that_gets_sigterm_while_it_is_running_is_requeued(start: Start, tmp_path: Path) -> None:
    done = send_signal(start(TICKS="20"), signal.SIGTERM)
    assert "train: stopping (preempted)" in done.stdout
    assert is_requeued(tmp_path)


def test_a_cancelled_job_is_not_requeued(start: Start, tmp_path: Path) -> None:
    (tmp_path / "states" / "12345").write_text("COMPLETING")
    done = send_signal(start(TICKS="20"), signal.SIGTERM)
    assert done.returncode == 77
    assert "train: stopping (cancelled)" in done.stdout
    assert "train: Slurm ended the job; not requeued by this script. Newest checkpoint: none" in done.stdout
    assert not is_requeued(tmp_path)


def test_a_job_that_slurm_is_ending_is_not_requeued(job: Run, tmp_path: Path) -> None:
    (tmp_path / "states" / "12345").write_text("COMPLETING")
    done = job(OUTCOME="requeue")
    assert done.returncode == 77
    assert "not requeued: Slurm is already ending the job (COMPLETING)" in done.stdout
    assert not is_requeued(tmp_path)


def test_the_last_attempts_files_are_ignored_but_a_persons_stop_file_is_obeyed(job: Run, run_folder: Path) -> None:
    run_folder.mkdir(parents=True)
    (run_folder / "outcome.json").write_text(json.dumps({"outcome": "finished", "reason": "old", "step": 1}))
    (run_folder / "stop").write_text("time limit\n")
    assert "no outcome" in job(TORCHRUN="1").stdout
    assert not (run_folder / "stop").exists()
    (run_folder / "stop").write_text("enough for today\n")
    assert "enough for today at step 7" in job(OUTCOME="stopped").stdout


def test_a_folder_that_another_job_uses_is_rejected(job: Run, tmp_path: Path) -> None:
    job(RUN_FOLDER="shared", OUTCOME="finished", SLURM_JOB_ID="777")
    done = job(RUN_FOLDER="shared", OUTCOME="finished")
    assert (done.returncode, done.stderr) == (
        2,
        f"train: FAILED: job 777 is training in {tmp_path}/shared: wait for it, or set another RUN_FOLDER\n",
    )
    (tmp_path / "states" / "777").write_text("COMPLETED")
    assert job(RUN_FOLDER="shared", OUTCOME="finished").returncode == 0


def test_the_default_is_one_rank_per_gpu(job: Run) -> None:
    assert "--nproc-per-node=4 " in job(SLURM_GPUS_ON_NODE="4").stdout
    assert "--gpus-per-node=4" in job(SLURM_GPUS_ON_NODE="4").stdout
    assert "--nproc-per-node=1 " in job(SLURM_GPUS_ON_NODE="4", RANKS_PER_NODE="1").stdout


def test_an_elastic_job_survives_the_loss_of_a_node(job: Run) -> None:
    done = job(OUTCOME="finished", NODES_MIN="1")
    assert "--nnodes=1:2 " in done.stdout
    assert "--no-kill --kill-on-bad-exit=0" in done.stdout
    assert "last_call_timeout=5,keep_alive_interval=3,keep_alive_max_attempt=3" in done.stdout
    assert "--kill-on-bad-exit=1" in job(OUTCOME="finished").stdout


def test_a_job_can_have_spare_nodes(job: Run) -> None:
    done = job(OUTCOME="finished", NODES_MAX="1")
    assert "--nnodes=1:1 " in done.stdout
    assert "--no-kill" in done.stdout


@pytest.mark.parametrize("nodes", [{"NODES_MIN": "3"}, {"NODES_MIN": "0"}, {"NODES_MAX": "5"}])
def test_invalid_node_counts_are_rejected(job: Run, nodes: dict[str, str]) -> None:
    done = job(**nodes)
    assert done.returncode == 2
    assert "must be 1 <= NODES_MIN <= NODES_MAX <= 2, the nodes of the job" in done.stderr


@pytest.mark.parametrize("address", ["localhost", "127.0.1.1", "no-such-name"])
def test_a_head_node_that_others_cannot_reach_is_rejected(job: Run, address: str) -> None:
    done = job(NODE_ADDR=address)
    assert done.returncode == 2
    assert f"the head node gpu-1 has no address others can reach (NodeAddr={address}" in done.stderr
    assert "torch" not in done.stdout


def test_a_node_that_would_advertise_loopback_fails(job: Run) -> None:
    done = job(LOCAL_ADDR="127.0.0.1")
    assert "train: FAILED: gpu-2 has no address towards 10.88.0.3 (found '127.0.0.1')" in done.stderr


def test_the_folder_can_be_given_as_an_override(job: Run, tmp_path: Path) -> None:
    assert f"run.folder={tmp_path}/here\n" in job("tiny-llama", "run.folder=here", OUTCOME="finished").stdout
    done = job("tiny-llama", "run.folder=runs/{name}")
    assert (done.returncode, "placeholders" in done.stderr) == (2, True)


def test_mistakes_are_reported_before_anything_starts(job: Run, start: Start, tmp_path: Path) -> None:
    outside = job(SLURM_JOB_ID="")
    assert (outside.returncode, outside.stderr) == (2, "train: FAILED: not inside a job: submit it with sbatch\n")
    assert "no training environment at" in job(MUSTER_ROOT=str(tmp_path / "elsewhere")).stderr
    bare = subprocess.run(["bash", str(JOB)], env={"SLURM_JOB_ID": "1", **os.environ}, capture_output=True, text=True)
    assert "train: FAILED: no config: sbatch train.sbatch CONFIG" in bare.stderr


def test_only_the_files_of_the_run_remain(job: Run, run_folder: Path) -> None:
    job(OUTCOME="finished")
    assert sorted(path.name for path in run_folder.iterdir()) == ["events.jsonl", "job", "outcome.json"]


def test_the_sbatch_options() -> None:
    header = {line.split()[1] for line in JOB.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {"--requeue", "--signal=B:USR1@120", "--open-mode=append", "--output=%x-%j.out", "--nodes=2"} <= header
