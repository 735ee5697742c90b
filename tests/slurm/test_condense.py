"""Output that the controller condenses: what the ready gate reads of a thousand nodes fits into Run Command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from infra.targets.aws import run_command
from slurm.control.condense import MAX_OTHER_LINES, condense_nodes, condense_ranks, join_names, join_numbers
from slurm.control.condensed import condense_ranks as condense_ranks_of
from slurm.control.condensed import show_free_nodes
from slurm.control.nodes import NodeState, parse_nodes
from slurm.gate_verdict import judge_job, parse_ranks
from slurm.hostlist import expand

NODES = 1000
NAMES = [f"gpu-{number}" for number in range(1, NODES + 1)]
CPUS, MEMORY_MB = 2, 512
# A line of scontrol 26.05 for a node with eight GPUs has about 900 characters.
LINE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=48  CPUAlloc={alloc} CPUEfctv=192 CPUTot=192 CPULoad=0.75 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=gpu:h200:8 NodeAddr={name} NodeHostName={name} "
    "Version=26.05.5 OS=Linux 6.12.0 RealMemory=1992294 AllocMem={memory} FreeMem=1900000 Sockets=2 Boards=1 "
    "State={state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=gpu "
    "BootTime=2026-11-18T03:00:00 SlurmdStartTime=2026-11-18T03:01:00 LastBusyTime=2026-11-18T03:02:00 {reason}"
)


def line(name: str, state: str = "IDLE+CLOUD", alloc: int = 0, memory: int = 0, reason: str = "") -> str:
    return LINE.format(name=name, state=state, alloc=alloc, memory=memory, reason=reason).rstrip() + "\n"


def decide(state: NodeState) -> tuple[object, ...]:
    """Return what the gate decides by."""
    cpus, takes = min(CPUS, state.free_cpus), state.can_take(MEMORY_MB)
    return (
        str(state),
        state.by,
        state.works,
        state.usable,
        state.resumable,
        state.left_out,
        state.completing,
        cpus,
        takes,
    )


def test_a_thousand_idle_nodes_are_one_line():
    text = "".join(map(line, NAMES))
    condensed = condense_nodes(text, CPUS, MEMORY_MB)
    assert condensed == "NodeName=gpu-[1-1000] CPUTot=2 RealMemory=512 State=IDLE+CLOUD\n"
    assert len(text) > 20 * run_command._MAX_OUTPUT_CHARACTERS
    assert list(parse_nodes(condensed)) == NAMES


def test_condensed_nodes_decide_like_those_that_scontrol_shows():
    """Nodes in every state, each with its own allocation: lines that differ only in what decides nothing are equal."""
    states = ["IDLE", "MIXED", "ALLOCATED", "DOWN*", "IDLE+DRAIN", "MIXED+COMPLETING", "IDLE*+CLOUD", "UNKNOWN"]
    reasons = [
        "", "Reason=Not responding [slurm@2026-11-18T03:00:00]", "Reason=fan broken, row=7 [bob@2026-11-18T03:00:01]",
        "Reason=muster: leaving [root@2026-11-18T04:00:00] Comment=x", "Reason=no user",
        "Reason=Node unexpectedly rebooted [slurm@2026-11-18T03:00:00]",
    ]  # fmt: skip
    text = "".join(
        line(name, states[n % 8], alloc=n % 193, memory=(n * 7919) % 1992294, reason=reasons[n % 7 % 6])
        for n, name in enumerate(NAMES)
    )
    condensed = condense_nodes(text, CPUS, MEMORY_MB)
    shown, read = parse_nodes(text), parse_nodes(condensed)
    assert {name: decide(state) for name, state in read.items()} == {
        name: decide(state) for name, state in shown.items()
    }
    assert {name: state.reason for name, state in read.items()} == {name: state.reason for name, state in shown.items()}
    assert len(condensed) < run_command._MAX_OUTPUT_CHARACTERS


def test_a_thousand_reasons_are_cut_off_but_keep_their_meaning():
    text = "".join(
        line(name, "IDLE+DRAIN", reason=f"Reason=Low RealMemory (reported:{n} < configured:1992294) [slurm@2026-11-18]")
        for n, name in enumerate(NAMES)
    )
    condensed = condense_nodes(text, CPUS, MEMORY_MB)
    assert len(condensed) < run_command._MAX_OUTPUT_CHARACTERS
    assert all(state.resumable for state in parse_nodes(condensed).values())


def test_five_thousand_nodes_in_turns_of_two_states_fit():
    names = [f"gpu-{number}" for number in range(1, 5001)]
    text = "".join(line(name, "IDLE" if n % 7 else "MIXED") for n, name in enumerate(names))
    condensed = condense_nodes(text, CPUS, MEMORY_MB)
    assert sorted(parse_nodes(condensed)) == sorted(names)
    assert len(condensed) < run_command._MAX_OUTPUT_CHARACTERS


def run_script(tmp_path: Path, script: str, scontrol: str) -> tuple[int, str]:
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    (tmp_path / "scontrol").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", script], env=environment, text=True, capture_output=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_query_passes_the_error_of_slurmctld_on(tmp_path: Path):
    script = show_free_nodes(["gpu-1", "gpu-2"], CPUS, MEMORY_MB)
    error = "slurm_load_node error: Unable to contact slurm controller (connect failure)"
    assert run_script(tmp_path, script, f"echo '{error}' >&2; exit 1") == (1, f"{error}\n")
    code, out = run_script(tmp_path, script, f"[ $4 = 'gpu-[1-2]' ] && echo '{line('gpu-1').strip()}'")
    assert (code, out) == (0, "NodeName=gpu-1 CPUTot=2 RealMemory=512 State=IDLE+CLOUD\n")


def report(host: str, rank: int, stage: str, **fields: object) -> str:
    return f"muster-gate {json.dumps({'host': host, 'rank': rank, 'stage': stage, **fields})}\n"


def all_stages(host: str, rank: int, total: float) -> str:
    stages = report(host, rank, "started") + report(host, rank, "imported")
    joined = report(host, rank, "joined", address=f"10.0.{rank // 256}.{rank % 256}", device="cpu")
    return stages + joined + report(host, rank, "passed", sum=total)


def test_a_thousand_ranks_that_pass_are_one_line():
    total = NODES * (NODES + 1) / 2
    output = "".join(all_stages(host, rank, total) for rank, host in enumerate(NAMES))
    condensed = condense_ranks(output)
    assert len(condensed.splitlines()) == 1
    assert judge_job(NAMES, 0, condensed) is None
    assert judge_job([*NAMES, "gpu-1001"], 0, condensed) is not None
    assert len(output) > 10 * run_command._MAX_OUTPUT_CHARACTERS


@pytest.mark.parametrize("broken", ["silent", "wrong sum", "error", "did not join"])
def test_the_verdict_on_condensed_reports_is_that_on_all_reports(broken: str):
    """The ranks of srun are in no particular order, and the node to look at is one among a thousand."""
    bad, ranks = "gpu-617", {host: (number * 613) % NODES for number, host in enumerate(NAMES)}
    total = NODES * (NODES + 1) / 2
    lines = []
    for host, rank in ranks.items():
        if broken == "wrong sum":
            lines.append(all_stages(host, rank, total - (host == bad)))
        elif host == bad and broken == "silent":
            lines.append("")
        elif host == bad and broken == "error":
            lines.append(report(host, rank, "started") + report(host, rank, "failed", error="cannot load libnccl"))
        else:
            missing = [ranks[bad]] if broken == "did not join" and host != bad else []
            error = f"rank {rank}: 1 of {NODES} ranks did not join"
            lines.append(report(host, rank, "imported") + report(host, rank, "failed", error=error, missing=missing))
    lines += [f"srun: error: {host}: task {rank}: Exited with exit code 1\n" for host, rank in ranks.items()]
    output = "".join(lines)
    condensed = condense_ranks(output)
    assert len(condensed) < run_command._MAX_OUTPUT_CHARACTERS
    expected, verdict = judge_job(NAMES, 1, output), judge_job(NAMES, 1, condensed)
    assert expected is not None
    assert verdict is not None
    assert (verdict.node, verdict.step) == (expected.node, expected.step) == (bad, expected.step)


def test_reports_of_one_rank_keep_stage_and_error():
    output = report("gpu-1", 0, "imported") + report("gpu-1", 0, "failed", error="timeout", missing=[3])
    assert parse_ranks(condense_ranks(output)) == parse_ranks(output)
    damaged = 'muster-gate {"host": "gp\nmuster-gate 7\nmuster-gate {}\nsrun: error: x\n'
    assert parse_ranks(condense_ranks(damaged)) == {}
    assert "srun: error: x" in condense_ranks(damaged)


def test_the_job_keeps_its_exit_status(tmp_path: Path):
    job = ["sh", "-c", f"printf '{report('gpu-1', 0, 'started').strip()}\\n'; echo broken >&2; exit 7"]
    code, out = run_script(tmp_path, condense_ranks_of(job), "")
    assert code == 7
    assert parse_ranks(out)["gpu-1"].stage == "started"
    assert "broken" in out


def test_first_and_last_of_many_errors_are_shown():
    lines = condense_ranks("".join(f"srun: error {number}\n" for number in range(1000))).splitlines()
    assert (lines[0], lines[-1], len(lines)) == ("srun: error 0", "srun: error 999", MAX_OTHER_LINES + 1)


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["gpu-1", "gpu-2", "gpu-3"], "gpu-[1-3]"),
        (["gpu-3", "gpu-1", "gpu-2", "cpu-3"], "gpu-[3,1-2],cpu-3"),
        (["gpu-1", "gpu-7"], "gpu-[1,7]"),
        (["controller"], "controller"),
        (["a-09", "a-10"], "a-09,a-10"),
    ],
)
def test_names_keep_their_order(names: list[str], joined: str):
    assert join_names(names) == joined
    assert list(expand(joined)) == names


def test_numbers_are_joined_in_their_order():
    assert join_numbers([0, 1, 2, 7, 4]) == "0-2,7,4"
