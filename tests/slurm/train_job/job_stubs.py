"""train.sbatch with stubs for the Slurm commands, Python and torchrun; it runs on the two nodes gpu-1 and gpu-2."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.slurm.test_jobs_smoke import SHOW_RENDEZVOUS

REPO = Path(__file__).resolve().parents[3]
JOB = REPO / "slurm" / "jobs" / "train.sbatch"

STUBS = {
    "scontrol": """echo "scontrol $*" >>"$CALLS"
        case "$1 $2" in
        "show hostnames") printf '%s\\n' gpu-1 gpu-2 ;;
        "show node") echo "NodeName=$3 Arch=x86_64 NodeAddr=${NODE_ADDR-10.88.0.3} NodeHostName=$3" ;;
        "show partition") echo "PartitionName=$3 MaxTime=UNLIMITED PreemptMode=${PREEMPT_MODE-OFF} State=UP" ;;
        "show job")
            [ -z "${SILENT:-}" ] || exit 1
            state=$(cat "$STATES/$3" 2>/dev/null || echo RUNNING)
            case $state in
            hidden) echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1 ;;
            unanswered) echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1 ;;
            esac
            echo "JobId=$3 JobName=x JobState=$state Reason=None PreemptTime=${PREEMPTED-None}" \\
                "ExcNodeList=$(cat "$STATES/excluded" 2>/dev/null || echo "(null)") Nice=0" ;;
        update*) echo "${3#ExcNodeList=}" >"$STATES/excluded" ;;
        "requeue "*) [ -z "${REQUEUE_FAILS:-}" ] || exit 1; kill -TERM $PPID ;;
        esac""",
    "squeue": 'case "$*" in *"--jobs=12345 --format=%V") echo "${SUBMITTED-}" ;; *) exit 1 ;; esac',
    "sacctmgr": 'echo "${ADMIN_LEVEL-None}"',
    "getent": 'case "$2" in [0-9]*) echo "$2 STREAM $2" ;; localhost*) echo "127.0.0.1 STREAM x" ;; *) exit 2 ;; esac',
    "ip": 'echo "$5 via 10.88.0.1 dev eth0 src ${LOCAL_ADDR-10.88.0.$((2 + ${SLURMD_NODENAME#gpu-}))} uid 0"',
    "ss": """echo "ss $*" >>"$MUSTER_ROOT/commands"
        case "$*" in *established*)
            [ "$SLURMD_NODENAME" != "${CUT_OFF:-}" ] || port=6818
            printf '0 0 10.88.0.4:40000 10.88.0.3:22\\n0 0 [::ffff:10.88.0.4]:40002 [::ffff:10.88.0.3]:%s\\n' "$port"
        esac""",
    "sinfo": 'case "$*" in *--partition=*) printf "%s\\n" "${PARTITION:-}" ;; *) echo "${DOWN:-}" ;; esac',
    # RUN_OWNER is the number and the name of the user who owns the files of the run.
    "stat": '[ -z "${RUN_OWNER:-}" ] || { echo "$RUN_OWNER"; exit; }; PATH=${PATH#*:}; exec stat "$@"',
    # Runs the step on both nodes, one after the other, and fails if it fails on either. As on a cluster whose switches
    # have another order than its nodes, the second node is number 0.
    # Where a step runs, only the programs in STEP_PATH exist. A container does not start on the nodes in UNSTARTABLE.
    "srun": """echo "srun $*"
        ids="1 2"
        case " $* " in *" --nodes=1 "*) ids=1 ;; esac
        for id in $ids; do
            case " $* :${UNSTARTABLE:-}" in
            *" --container="*:*gpu-$id*) echo "muster: no crun. Fix: install it" >&2; exit 125 ;;
            esac
        done
        PATH=${STEP_PATH:-$PATH}
        while [ "$1" != bash ] && [ "$1" != sh ]; do shift; done
        command -v "$1" >/dev/null || { printf 'executable file `%s` not found in $PATH\\n' "$1" >&2; exit 1; }
        code=0
        for id in $ids; do SLURM_NODEID=$((2 - id)) SLURMD_NODENAME=gpu-$id "$@" || code=1; done
        exit $code""",
    # The trainer: runs for TICKS, or until its folder has the file UNTIL, then writes an outcome; a stop file makes it
    # stop, and its text becomes the reason.
    # It does not end before the job has recorded that its node has joined, which real ones do within a second.
    # The lock of the run folder is real.
    "python": f"""case "$*" in "-S -m trainer.checkpoint.claim "*) PYTHONPATH={REPO} exec {sys.executable} "$@" ;; esac
case "$*" in *find_spec*) echo "${{NO_TORCH:+lacks torch}}"; exit ;; esac
{SHOW_RENDEZVOUS}
"""
    """echo "$SLURMD_NODENAME: $*"
        [ "$SLURMD_NODENAME" = "${CUT_OFF:-}" ] || until [ -e "$joined/$SLURMD_NODENAME" ]; do sleep 0.01; done
        [ "$SLURMD_NODENAME" = gpu-1 ] || exit ${TORCHRUN:-0}
        for _ in $(seq "${TICKS:-0}"); do
            sleep 0.05
            [ ! -e "$run/stop" ] || OUTCOME=requeue
            [ ! -e "$run/${UNTIL:-none}" ] || break
        done
        [ ! -e "$run/stop" ] || REASON=$(cat "$run/stop")
        [ -z "${CHECKPOINT:-}" ] || mkdir -p "$run/checkpoints/step-$CHECKPOINT"
        [ -z "${OUTCOME:-}" ] || printf '{"outcome": "%s", "reason": "%s", "step": 7, "time": 1.5%s}\\n' \\
            "$OUTCOME" "${REASON:-a reason, with a comma}" "${FAILURE:-}" >"$MUSTER_OUTCOME_FILE"
        exit ${TORCHRUN:-0}""",
}

Start = Callable[..., "subprocess.Popen[str]"]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def write_stubs(folder: Path) -> None:
    """Write the stubs into the folders of `folder` in which the job looks for its commands."""
    folders = dict.fromkeys(STUBS, folder / "bin") | {"python": folder / "root" / "env" / "bin"}
    for name, body in STUBS.items():
        folders[name].mkdir(parents=True, exist_ok=True)
        stub = folders[name] / name
        stub.write_text(f"#!/bin/bash\n{body}\n")
        stub.chmod(0o755)
    (folder / "states").mkdir()
    (folder / "root" / "slurm").symlink_to(REPO / "slurm")


def start_job(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start the job in a folder with stubs; `env` are more variables of the job and of the stubs."""
    base = {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "MUSTER_ROOT": str(folder / "root"),
        "CALLS": str(folder / "calls"),
        "STATES": str(folder / "states"),
        "SLURM_SUBMIT_DIR": str(folder),
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
    return subprocess.Popen(command, env=base | env, stdout=pipe, stderr=pipe, text=True, cwd=folder)


def finish(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def is_requeued(tmp_path: Path) -> bool:
    return "scontrol requeue 12345" in (tmp_path / "calls").read_text()


def send_signal(
    process: subprocess.Popen[str], number: int, answer: str = "", end: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Send a signal to the job while its step is running, wait for the job, and return it.

    With `end`, the step runs until the job has answered the signal, which ends the wait for this file (see UNTIL).
    """
    seen = read_until(process, "gpu-1: ")
    process.send_signal(number)
    if end is not None:
        seen += read_until(process, answer)
        end.touch()
    done = finish(process)
    return subprocess.CompletedProcess(done.args, done.returncode, seen + done.stdout, done.stderr)


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Read the output of the job until it contains a text, or to its end, and return it."""
    assert process.stdout is not None
    seen = ""
    while text not in seen and (line := process.stdout.readline()):
        seen += line
    return seen
