"""The ready gate against a stub controller: which nodes are tested, as which user, and what is retried."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from cluster.inventory import Inventory, Node, NodeGpus
from slurm import gate
from slurm.alerts import install
from slurm.control.condense import condense_nodes, condense_ranks
from slurm.gate import GateError, check, limit_job_s
from slurm.hostlist import expand


@dataclass(frozen=True)
class Answer:
    code: int = 0
    out: str = ""


def node(name: str, address: str) -> Node:
    role = "compute" if "-" in name else "controller"
    group = name.rsplit("-", 1)[0] if role == "compute" else None
    return Node(
        name=name, role=role, group=group, address=address, host_key="", machine_id=name, cpus=2, memory_mb=2048
    )


INVENTORY = Inventory(
    cluster="test",
    target="local",
    nodes=(
        node("controller", "10.88.0.2"),
        node("gpu-1", "10.88.0.3"),
        node("gpu-2", "10.88.0.4"),
        node("cpu-1", "10.88.0.5"),
    ),
    single_host=True,
)


@dataclass
class Controller:
    """A stub that answers `scontrol show node` from `states`; srun passes on every node of --nodelist by default."""

    states: dict[str, str] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    alerts: list[str] = field(default_factory=list)
    srun: Callable[[list[str]], Answer] | None = None
    silent: tuple[str, ...] = ()
    kill_wait_s: int = 30
    memory_mb: int = 1920
    load: str = "0.42\n2\n"

    def __call__(self, script: str) -> Answer:
        if install.SPOOL in script:
            self.alerts.append(script)
            return Answer()
        self.scripts.append(script)
        if script.startswith("scontrol show config"):
            return Answer(out=f"JobRequeue              = 1\nKillWait                = {self.kill_wait_s} sec\n")
        if script.startswith("scontrol"):
            show, _, condense = script.partition(" 2>&1 | ")
            shown = "\n".join(self._show(name) for name in expand(shlex.split(show)[4]))
            return Answer(out=condense_nodes(shown, *map(int, shlex.split(condense)[-2:])))
        if script.startswith("grep"):
            return Answer(1)
        if script.startswith("port=") or "/proc/loadavg" in script:
            return Answer(out="\n".join(self.silent) if script.startswith("port=") else self.load)
        (names,) = [expand(word.partition("=")[2]) for word in shlex.split(script) if word.startswith("--nodelist=")]
        answer = self.srun(list(names)) if self.srun else passed(list(names))
        return Answer(answer.code, condense_ranks(answer.out))

    def _show(self, name: str) -> str:
        state = self.states.get(name, "State=IDLE")
        return f"NodeName={name} CPUAlloc=0 CPUTot=2 RealMemory={self.memory_mb} AllocMem=0 Weight=1 {state}"

    @property
    def jobs(self) -> list[list[str]]:
        return [shlex.split(s) for s in self.scripts if "--nodelist=" in s]


def passed(names: list[str]) -> Answer:
    total = len(names) * (len(names) + 1) / 2
    lines = [{"host": n, "rank": i, "stage": "passed", "sum": total} for i, n in enumerate(names)]
    return Answer(out="".join(f"muster-gate {json.dumps(line)}\n" for line in lines))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock with one that advances only when the gate sleeps."""
    clock = [0.0]
    monkeypatch.setattr(gate.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(gate.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))


def run_check(
    controller: Controller, proven: tuple[str, ...] = (), events: list[tuple[str, str]] | None = None
) -> gate.Ready:
    def report(name: str, state: str, _detail: str) -> None:
        if events is not None:
            events.append((name, state))

    return check(controller, INVENTORY, "/shared/env/abc", "alice", report, proven=proven)


def test_one_job_per_group_runs_on_all_its_nodes_as_the_user():
    controller, events = Controller(), list[tuple[str, str]]()
    ready = run_check(controller, events=events)
    assert sorted(ready.nodes) == ["cpu-1", "gpu-1", "gpu-2"]
    assert (sorted(ready.groups), ready.ranks) == (["cpu", "gpu"], 3)
    job = next(j for j in controller.jobs if "--partition=gpu" in j)
    assert job[job.index("runuser") :][:4] == ["runuser", "-u", "alice", "--"]
    assert {"--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=gpu-[1-2]"} <= set(job)
    rank = job.index("trainer.gate")
    assert job[rank - 2 : rank + 3] == ["/shared/env/abc/bin/python", "-m", "trainer.gate", "gpu-1", "10.88.0.3"]
    assert set(events) == {(n, s) for n in ready.nodes for s in ("start", "ok")}
    assert (sorted(ready.tested), ready.proven_earlier, ready.left_out) == (["cpu-1", "gpu-1", "gpu-2"], [], {})


@pytest.mark.parametrize(("options", "deadline_s"), [({}, 45 + 3 * 3), ({"job_s": 300.0}, 300 + 3 * 3)])
def test_the_target_sets_how_long_a_job_may_take(options: dict[str, float], deadline_s: int) -> None:
    controller = Controller()
    check(controller, INVENTORY, "/e", "alice", lambda *_: None, **options)
    for job in controller.jobs:
        assert job[job.index("timeout") + 2] == str(deadline_s)


@pytest.mark.parametrize(
    ("load", "deadline_s"), [("1.90\n2\n", 54), ("6.00\n2\n", 144), ("99.00\n2\n", 234), ("", 54), ("x y", 54)]
)
def test_a_job_may_take_longer_on_a_busy_machine(load: str, deadline_s: int) -> None:
    controller = Controller(load=load)
    check(controller, INVENTORY, "/shared/env/abc", "alice", lambda *_: None)
    for job in controller.jobs:
        assert job[job.index("timeout") + 2] == str(deadline_s)


def test_the_load_of_the_controller_counts_for_nothing_on_machines_of_their_own() -> None:
    controller = Controller(load="99.00\n2\n")
    inventory = INVENTORY.model_copy(update={"single_host": False})
    check(controller, inventory, "/shared/env/abc", "alice", lambda *_: None)
    assert not any("loadavg" in script for script in controller.scripts)
    for job in controller.jobs:
        assert job[job.index("timeout") + 2] == str(120 + 3 * 3)


@pytest.mark.parametrize(("nodes", "deadline_s"), [(3, 54), (100, 345), (1000, 435), (5000, 835)])
def test_the_deadline_grows_slowly_once_nodes_are_machines_of_their_own(nodes: int, deadline_s: float) -> None:
    assert limit_job_s(nodes) == pytest.approx(deadline_s)


def test_nodes_with_real_gpus_must_compile_for_one_of_them():
    gpus = NodeGpus(count=8, kind="real")
    nodes = tuple(n.model_copy(update={"gpus": gpus} if n.group == "gpu" else {}) for n in INVENTORY.nodes)
    controller = Controller()
    check(controller, INVENTORY.model_copy(update={"nodes": nodes}), "/shared/env/abc", "alice", lambda *_: None)
    jobs = {job[job.index("trainer.gate") + 1]: job for job in controller.jobs}
    assert "--gpus-per-node=1" in jobs["gpu-1"]
    assert "gpu" in jobs["gpu-1"]
    assert "gpu" not in jobs["cpu-1"]
    # 70 % of a node with 2048 MB, where a rank without a GPU gets 512 MB.
    assert "--mem=1433M" in jobs["gpu-1"]
    assert "--mem=512M" in jobs["cpu-1"]


def test_the_gate_waits_for_a_node_that_registers_late():
    controller = Controller({"gpu-2": "State=UNKNOWN+NOT_RESPONDING"})

    def register_late(script: str, ask: Callable[[str], Answer] = controller.__call__) -> Answer:
        if len(controller.scripts) == 4:
            controller.states.clear()
        return ask(script)

    ready = check(register_late, INVENTORY, "/shared/env/abc", "alice", lambda *_: None)
    assert ready.ranks == 3


def test_a_node_that_stays_down_is_named_with_slurms_reason():
    controller, events = Controller({"gpu-2": "State=DOWN Reason=Not responding [slurm@2026]"}), list[tuple[str, str]]()
    with pytest.raises(GateError, match=r"node gpu-2, step registration: slurmctld reports it as down"):
        run_check(controller, events=events)
    assert ("gpu-2", "failed") in events


def test_proven_nodes_full_of_jobs_are_skipped():
    controller = Controller({"gpu-1": "State=ALLOCATED CPUAlloc=2"})
    ready = run_check(controller, proven=("gpu-1",))
    assert ready.ranks == 2
    assert any("--nodelist=gpu-2" in job for job in controller.jobs)
    assert (sorted(ready.tested), ready.proven_earlier) == (["cpu-1", "gpu-2"], ["gpu-1"])
    assert sorted(ready.nodes) == ["cpu-1", "gpu-1", "gpu-2"]


def test_only_nodes_that_ran_the_job_count_as_tested():
    full = Controller({"gpu-1": "State=ALLOCATED CPUAlloc=2", "gpu-2": "State=ALLOCATED CPUAlloc=2"})
    reports: dict[str, tuple[str, str]] = {}
    ready = check(full, INVENTORY, "/e", "alice", lambda n, *what: reports.update({n: what}), proven=("gpu-1", "gpu-2"))
    assert (ready.tested, ready.proven_earlier, ready.ranks) == (["cpu-1"], ["gpu-1", "gpu-2"], 1)
    assert reports["cpu-1"] == ("ok", "sum over 1 rank is right")
    assert reports["gpu-1"] == reports["gpu-2"] == ("skipped", "held by jobs; proven earlier")


def test_a_node_that_a_person_drained_is_left_out():
    drained = Controller({"gpu-2": "State=IDLE+DRAIN Reason=fan broken [bob@2026-11-15T03:00:00]"})
    reports: dict[str, tuple[str, str]] = {}
    ready = check(drained, INVENTORY, "/e", "alice", lambda n, *what: reports.update({n: what}))
    assert (sorted(ready.tested), ready.left_out) == (["cpu-1", "gpu-1"], {"gpu-2": "idle+drain (fan broken)"})
    assert reports["gpu-2"] == ("skipped", "left out: idle+drain (fan broken)")
    assert not any("gpu-2" in part for job in drained.jobs for part in job)


def test_a_node_that_slurm_drained_fails_the_gate():
    drained = Controller({"gpu-2": "State=IDLE+DRAIN Reason=Kill task failed [slurm@2026-11-15T03:00:00]"})
    with pytest.raises(GateError, match=r"node gpu-2.*idle\+drain \(Kill task failed\).*state=resume"):
        run_check(drained)


def test_a_new_node_full_of_jobs_fails_the_gate():
    controller = Controller({"gpu-2": "State=ALLOCATED CPUAlloc=2"})
    with pytest.raises(GateError, match="node gpu-2, step job start: jobs filled it"):
        run_check(controller, proven=("gpu-1",))


def test_nodes_that_another_job_took_are_requested_again():
    refusals = [Answer(1, "srun: error: Unable to allocate resources: Requested nodes are busy\n")]
    controller = Controller()
    controller.srun = lambda names: refusals.pop() if len(names) == 2 and refusals else passed(names)
    assert run_check(controller).ranks == 3
    assert sum("--partition=gpu" in job for job in controller.jobs) == 2


def test_a_proven_node_that_a_killed_job_still_holds_is_skipped_after_a_wait():
    controller = Controller({"gpu-2": "State=MIXED+COMPLETING CPUAlloc=1"})

    def srun(names: list[str]) -> Answer:
        gate.time.sleep(5)
        taken = Answer(1, "srun: error: Unable to allocate resources: Requested nodes are busy\n")
        return taken if "gpu-2" in names else passed(names)

    controller.srun = srun
    ready = run_check(controller, proven=("gpu-1", "gpu-2"))
    assert (sorted(ready.tested), ready.proven_earlier) == (["cpu-1", "gpu-1"], ["gpu-2"])
    with pytest.raises(GateError, match=r"Requested nodes are busy. Fix: wait for the jobs .*`scancel` them, then"):
        run_check(controller)


@pytest.mark.nightly_cases("120-State=ALLOCATED+COMPLETING")
@pytest.mark.parametrize("state", ["State=MIXED+COMPLETING", "State=ALLOCATED+COMPLETING"])
@pytest.mark.parametrize("kill_wait_s", [30, 120])
def test_the_wait_for_a_new_node_that_a_killed_job_holds_covers_kill_wait(state: str, kill_wait_s: int):
    controller = Controller({"gpu-2": state}, kill_wait_s=kill_wait_s)

    def ask(script: str) -> Answer:
        if gate.time.monotonic() > kill_wait_s:
            controller.states.clear()
        return controller(script)

    def srun(names: list[str]) -> Answer:
        gate.time.sleep(5)
        taken = Answer(1, "srun: error: Unable to allocate resources: Requested nodes are busy\n")
        return taken if "gpu-2" in names and controller.states else passed(names)

    controller.srun = srun
    ready = check(ask, INVENTORY, "/shared/env/abc", "alice", lambda *_: None, proven=("gpu-1",))
    assert sorted(ready.tested) == ["cpu-1", "gpu-1", "gpu-2"]


def test_a_failed_rank_fails_the_gate():
    controller = Controller(srun=lambda names: Answer(1, f"srun: error: Node failure on {names[-1]}\n"))
    with pytest.raises(GateError, match=r"Node failure on .*\. Fix: check whether the node is running"):
        run_check(controller)
    assert any("the gate of gpu failed: gpu-1, gpu-2: job start: srun: error: Node" in a for a in controller.alerts)


def test_a_gate_that_passes_sends_no_alert():
    controller = Controller()
    run_check(controller)
    assert controller.alerts == []


def test_a_job_that_does_not_start_is_blamed_on_the_node_slurm_has_lost():
    controller = Controller()

    def lose_gpu_2(names: list[str]) -> Answer:
        controller.states["gpu-2"] = "State=DOWN*"
        return (
            Answer(1, "srun: error: Something is wrong with the boot of the nodes.\n")
            if len(names) > 1
            else passed(names)
        )

    controller.srun = lose_gpu_2
    with pytest.raises(
        GateError, match=r"node gpu-2, step job start: slurmctld reports it as down\+not_responding; srun: error"
    ):
        run_check(controller)


def test_a_job_that_does_not_start_is_blamed_on_the_node_that_does_not_answer():
    controller = Controller(srun=lambda _: Answer(124, ""), silent=("gpu-2",))
    with pytest.raises(GateError, match=r"node gpu-2, step job start: it does not answer; no further output within"):
        run_check(controller)


def test_a_stopped_slurmctld_is_reported_with_its_fix():
    with pytest.raises(GateError, match=r"slurm_load_node error: Unable to contact slurm .* Fix: `systemctl status"):
        check(
            lambda _: Answer(1, "slurm_load_node error: Unable to contact slurm controller (connect failure)\n"),
            INVENTORY, "/e", "alice", lambda *_: None,
        )  # fmt: skip
