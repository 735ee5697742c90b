"""Functions behind the commands: node states, set-up times, stack names, caches, failure messages, cost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import APIError
from requests.exceptions import ConnectionError as RequestsConnectionError
from requests.exceptions import ReadTimeout

from cluster.inventory import Node
from cluster.spec import ClusterSpec
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import Home
from infra.receipt import Receipt
from infra.resources.error import ResourceError
from infra.targets.cost import Cost, Line
from infra.targets.facts import Machine, Slurm, SlurmNode, parse
from infra.targets.hosts.target import HostsTarget
from infra.targets.local import caches as local_caches
from infra.targets.local.target import LocalTarget
from infra.targets.registry import plan_of as plan
from infra.targets.target import Deployment, Leftover
from muster.commands import bootstrap, cost, demo, screen, stacks, status, teardown
from muster.commands.failure import explain_failure
from muster.deployments import exclude_other_stacks
from tests.harness import small_spec

REPO = Path(__file__).parents[2]


def node(name: str, role: Any = "compute") -> Node:
    return Node(name=name, role=role, address="10.0.0.1", host_key="k", machine_id="m", cpus=2, memory_mb=2048)


SINFO = "gpu-[1,3-4]|idle|none\ngpu-2|down*|Not responding\n---muster---\n"
SQUEUE = "7|alice|gpu|PENDING|0:00|2|(Resources)|train\n8|b|gpu|RUNNING|1:02|1|gpu-1|a\n---muster---\n"
TOTAL = "2\n---muster---\n"
UNITS = "slurmctld|active\nslurmdbd|failed\nmariadb|active\n---muster---\nproctrack/cgroup\n---muster---\nclosed\n"
UP = Machine("running", 60.0)


@pytest.mark.parametrize(
    ("tracking", "expected"), [("", ""), ("proctrack/cgroup", ""), ("proctrack/linuxproc", "none: jobs can use more")]
)
def test_status_says_that_jobs_are_not_limited(tracking: str, expected: str) -> None:
    slurm = parse(SINFO + SQUEUE + TOTAL + UNITS.replace("proctrack/cgroup", tracking))
    assert status.describe_limits(slurm).startswith(expected)
    assert bool(status.describe_limits(slurm)) is bool(expected)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("closed", ""),
        ("missing", "open: jobs can connect to those of other users until the next `up`"),
        ("open: not supported", "open: not supported: jobs can connect to those of other users"),
    ],
)
def test_status_says_that_jobs_of_different_users_can_connect(state: str, expected: str) -> None:
    slurm = parse(SINFO + SQUEUE + TOTAL + UNITS.replace("closed", state))
    assert status.describe_job_network(slurm) == expected
    assert status.describe_job_network(parse("an error")) == ""


def test_controller_answer_is_parsed() -> None:
    slurm = parse(SINFO + SQUEUE + TOTAL + UNITS)
    idle = SlurmNode("idle")
    assert slurm.nodes == {
        "gpu-1": idle,
        "gpu-3": idle,
        "gpu-4": idle,
        "gpu-2": SlurmNode("down*", "Not responding"),
    }
    assert [(job.id, job.state, job.where) for job in slurm.jobs] == [
        ("7", "PENDING", "(Resources)"),
        ("8", "RUNNING", "gpu-1"),
    ]
    assert slurm.daemons == {"slurmctld": "active", "slurmdbd": "failed", "mariadb": "active"}
    assert (slurm.problem, slurm.more_jobs) == ("", 0)
    assert parse(SINFO + SQUEUE + TOTAL.replace("2", "5003") + UNITS).more_jobs == 5001


def test_unreachable_controller_is_a_problem() -> None:
    broken = "slurm_load_partitions: error: Unable to contact slurm controller\n---muster---\n---muster---\n"
    assert "Unable to contact" in parse(broken + TOTAL + UNITS).problem


def test_incomplete_controller_answer_is_a_problem() -> None:
    for cut in ("", SINFO, SINFO + SQUEUE, SINFO + SQUEUE + TOTAL.replace("---muster---\n", "")):
        assert parse(cut).problem == "its answer is incomplete"
    odd = SQUEUE.replace("train", "---muster---")
    assert [job.name for job in parse(SINFO + odd + TOTAL + UNITS).jobs] == ["---muster---", "a"]


@pytest.mark.parametrize(
    ("compute_node", "machine", "listed", "state", "why"),
    [
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("idle")}, "idle", ""),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("mixed-")}, "mixed-", ""),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("drained", "bad disk")}, "drained", "bad disk"),
        (node("gpu-1"), UP, {"gpu-1": SlurmNode("idle*")}, "idle*", "not responding"),
        (node("gpu-1"), UP, {}, "unknown", "not in slurm.conf"),
        (node("gpu-1"), Machine("gone", kind="container"), {"gpu-1": SlurmNode("idle")}, "gone", "container gone"),
        (node("gpu-1"), Machine("exited", exit_code=137), {}, "exited", "machine exited with code 137"),
        (node("login", "login"), UP, {}, "up", ""),
        (node("login", "login"), Machine("stopped"), {}, "stopped", "machine stopped"),
        (node("gpu-1"), Machine("pending"), {"gpu-1": SlurmNode("idle#")}, "starting", ""),
        (node("gpu-1"), Machine("off"), {"gpu-1": SlurmNode("idle~")}, "off", ""),
        (node("gpu-1"), Machine("off"), {"gpu-1": SlurmNode("allocated#")}, "allocated#", ""),
        (node("gpu-1"), Machine("off"), {"gpu-1": SlurmNode("down~", "no capacity")}, "down~", "no capacity"),
        (
            node("gpu-1"),
            Machine("off"),
            {"gpu-1": SlurmNode("idle")},
            "idle",
            "machine gone; Slurm has not noticed yet",
        ),
    ],
)
def test_node_state_combines_machine_and_slurm(
    compute_node: Node, machine: Machine, listed: dict[str, SlurmNode], state: str, why: str
) -> None:
    assert status.judge_node(compute_node, machine, Slurm(nodes=listed)) == (state, why)


def test_node_state_is_unknown_if_the_controller_is_silent() -> None:
    assert status.judge_node(node("gpu-1"), UP, Slurm(problem="no answer")) == ("unknown", "")


def test_shares_add_up_to_one() -> None:
    assert demo.compute_shares({"a": 1.0, "b": 3.0}) == {"a": 0.25, "b": 0.75}
    assert demo.compute_shares({}) == {}


def test_phases_of_up_add_up_to_its_duration() -> None:
    assert demo.split_up_seconds(10.0, {"machines": 2.5, "ready": 1.5}) == {
        "engine": 6.0,
        "machines": 2.5,
        "ready": 1.5,
    }
    assert demo.split_up_seconds(1.0, {"machines": 2.0})["engine"] == 0.0


def test_setup_times_are_read_from_the_log(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_CACHE": str(tmp_path)})
    assert demo.read_setup_times(home) == (0.0, {})
    home.setup_log.parent.mkdir(parents=True)
    phases = {
        "preflight": {"seconds": 1.5, "state": "done"},
        "env": {"seconds": 0.5, "state": "cached"},
        "image": {"seconds": 40.0, "state": "done"},
    }
    home.setup_log.write_text(json.dumps({"seconds": 41.7, "phases": phases}))
    assert demo.read_setup_times(home) == (41.7, {"checks": 2.0, "image": 40.0})


def test_resources_of_another_stack_are_excluded() -> None:
    ours, nobodys, theirs = (Leftover("container", n, stack=s) for n, s in (("a", "mine"), ("b", ""), ("c", "other")))
    assert exclude_other_stacks([ours, nobodys, theirs], "mine") == [ours, nobodys]


def test_teardown_asks_with_the_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the target knows which of its resources are nodes."""
    questions: list[str] = []

    def decline(question: str) -> str:
        questions.append(question)
        return "n"

    monkeypatch.setattr(screen, "out", lambda: SimpleNamespace(is_terminal=True, input=decline))
    stack = Home.of({}).stack("mine")
    cluster = teardown._Cluster(stack, LocalTarget(), Deployment("demo", "mine"))
    leftovers = [Leftover("blade", "a", is_node=True), Leftover("disk", "b", keep_reason="keep: true")]
    assert not teardown._confirmed(cluster, leftovers)
    hosts = teardown._Cluster(stack, HostsTarget(), Deployment("demo", "mine"))
    assert not teardown._confirmed(hosts, leftovers[:1])
    assert questions == [
        "remove stack mine: cluster demo, 1 node and all data (disk b stays)? [y/N] ",
        "remove stack mine: cluster demo, 1 node (each host is given back as it was; shared files stay)? [y/N] ",
    ]


def test_secrets_of_an_exported_state_are_unwrapped() -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "plaintext": '"key"'}
    state = [
        {"type": "pulumi:pulumi:Stack"},
        {"type": "pulumi-python:muster:SlurmCluster", "inputs": {"spec": "{}", "slurm_key": secret}},
    ]
    assert bootstrap.read_inputs(state, "s") == {"spec": "{}", "slurm_key": "key"}
    with pytest.raises(Stop, match="no Slurm cluster"):
        bootstrap.read_inputs(state[:1], "s")


@pytest.mark.parametrize("name", ["../x", "A", "", "a/b", "a.b", "-x", "state", "locks", "receipts", "passphrase"])
def test_invalid_stack_name_is_rejected(name: str) -> None:
    with pytest.raises(Stop) as stop:
        stacks.resolve_stack(name)
    assert stop.value.code == BAD_INPUT
    assert f"stack: '{name}'" in stop.value.what
    assert "allowed: " in stop.value.what


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (913_000_000, "913 MB"), (5_700_000_000, "5.7 GB")]
)
def test_size_is_formatted(count: int, text: str) -> None:
    assert screen.format_size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (61, "1 min 1 s"), (7300, "2 h 1 min")])
def test_duration_is_formatted(seconds: float, text: str) -> None:
    assert screen.format_duration(seconds) == text


def test_folder_size_is_measured(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100_000)
    measured = local_caches.measure_folders(tmp_path)
    assert measured is not None
    assert measured >= 100_000
    assert local_caches.measure_folders(tmp_path / "gone") is None


def test_cache_removal_keeps_files_of_others(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_CACHE": str(tmp_path / "cache")})
    for name in ("pulumi/3.259.0/bin/pulumi", "tmp/half", "logs/setup.json", "env.json"):
        (home.cache / name).parent.mkdir(parents=True, exist_ok=True)
        (home.cache / name).write_text("ours")
    others = {"thesis.tex", "dockerd.pid", "setup.lock"}
    for name in others:
        (home.cache / name).write_text("not ours")
    (entry,) = local_caches._folders(home)
    assert entry.name == str(home.cache)
    local_caches.remove_tools(home)
    assert {path.name for path in home.cache.iterdir()} == others
    assert local_caches._folders(home) == []
    for name in others:
        (home.cache / name).unlink()
    local_caches.remove_tools(home)
    assert not home.cache.exists()


def test_cache_removal_keeps_the_target_of_a_link(tmp_path: Path) -> None:
    home = Home.of({"MUSTER_CACHE": str(tmp_path / "cache")})
    (tmp_path / "elsewhere").mkdir()
    home.cache.mkdir()
    (home.cache / "pulumi").symlink_to(tmp_path / "elsewhere")
    local_caches.remove_tools(home)
    assert (tmp_path / "elsewhere").is_dir()
    assert not home.cache.exists()


@pytest.mark.parametrize(
    ("failure", "what"),
    [
        (ReadTimeout("UnixHTTPConnectionPool: Read timed out. (read timeout=60)"), "took too long"),
        (RequestsConnectionError("refused"), "does not answer"),
        (APIError("500", explanation="no space left"), "Docker refused: no space left"),
        (ResourceError("name", "is taken", "choose another"), "name: is taken"),
        (Stop("as it is"), "as it is"),
    ],
)
def test_expected_failures_become_messages(failure: Exception, what: str) -> None:
    stop = explain_failure(failure)
    assert stop is not None
    assert what in stop.what


def test_unexpected_failure_keeps_its_traceback() -> None:
    assert explain_failure(KeyError("a")) is None


@pytest.mark.parametrize("failure", [ReadTimeout("slow"), APIError("500", explanation="broken")])
def test_receipt_notes_that_caches_could_not_be_listed(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_target: LocalTarget, _home: Home) -> None:
        raise failure

    monkeypatch.setattr(LocalTarget, "caches", refuse)
    receipt = Receipt("s", "c", "2026-01-01T00:00:00+00:00", 1.0, notes=("before",))
    listed = teardown.with_caches(receipt, LocalTarget(), Home.of({}))
    assert listed.caches == ()
    assert listed.notes[0] == "before"
    assert "caches could not be listed" in listed.notes[1]


def fake_ssh(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a fake ssh, and the tools that ssh to AWS needs, first in PATH."""
    for tool in ("ssh", "aws", "session-manager-plugin"):
        (folder / tool).write_text(f"#!/bin/sh\n{body}\n")
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_hourly_cost_comes_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_node(_target: LocalTarget, spec: ClusterSpec) -> Cost:
        return Cost((Line("groups", "nodes", 1, 1.5 * len(plan(spec).nodes)),))

    spec = ClusterSpec.model_validate(small_spec(name="dear"))
    assert cost.describe_cost(spec) == "0.00 USD per hour on target local"
    monkeypatch.setattr(LocalTarget, "cost", by_node)
    assert cost.describe_cost(spec) == "6.00 USD per hour on target local"
