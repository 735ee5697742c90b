"""Only slurm/control contains Slurm's commands, and its parsers read their output."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm.control.config import read_next_job_id, read_nodes, read_release, read_seconds
from slurm.control.jobs import NodeJob, parse_on_node, parse_pairs
from slurm.control.named_jobs import ListedJob, RunningJob, RunningJobs, parse_jobs, parse_running
from slurm.control.nodes import parse_listed, parse_listed_by_partition, parse_partitions, show_nodes, update_nodes

ROOT = Path(__file__).parents[2]
ROOMS = ("cluster", "slurm", "bootstrap", "infra", "muster", "trainer", "simulator", "setup", "benchmarks")
NAMES = "squeue|sinfo|scontrol|sacct|sacctmgr"
# Matches a string that starts with a command, or a command followed by an argument.
COMMAND = re.compile(rf"^({NAMES})(?![\w.:/-])|(?<![\w./-])({NAMES})\s+\S")
# Messages quote the commands that they recommend in backticks.
MESSAGE = re.compile("`[^`]*`")
FILES = [
    path
    for room in ROOMS
    for path in sorted((ROOT / room).rglob("*.py"))
    if ROOT / "slurm" / "control" not in path.parents
]


def find_commands(source: str) -> Iterator[str]:
    """Yield the string constants of a file that contain a Slurm command, except docstrings and messages."""
    if not re.search(NAMES, source):
        return
    tree = ast.parse(source)
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in ast.walk(tree):
        if id(node) in documentation or id(node) in pieces:
            continue
        text = read_text(node)
        if COMMAND.search(MESSAGE.sub("", text)):
            yield text


def read_text(node: ast.AST) -> str:
    """Return the text of a string, with `{}` for the values of an f-string; empty for any other node."""
    if isinstance(node, ast.JoinedStr):
        return "".join(read_text(piece) or "{}" for piece in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_only_slurm_control_contains_slurm_commands() -> None:
    commands = [
        f"{path.relative_to(ROOT)}: {command}"
        for path in FILES
        for command in find_commands(path.read_text(encoding="utf-8"))
    ]
    assert commands == []


def test_only_slurm_control_has_scripts_with_slurm_commands() -> None:
    """Job scripts (`*.sbatch`, and the parts of one) and benchmarks are exempt: they use Slurm as its users do."""
    allowed = {ROOT / "slurm/control", ROOT / "slurm/jobs/train", ROOT / "benchmarks"}
    scripts = [path for room in ROOMS for path in (ROOT / room).rglob("*.sh") if path.parent not in allowed]
    assert scripts
    lines = [(path.name, line) for path in scripts for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(name, line) for name, line in lines if not line.startswith("#") and COMMAND.search(line)] == []


@pytest.mark.parametrize(
    ("source", "commands"),
    [
        ('run(["scontrol", "show"])', ["scontrol"]),
        ('run("timeout 10 sinfo -h")', ["timeout 10 sinfo -h"]),
        ('run(f"squeue -j {job}")', ["squeue -j {}"]),
        ('fix = f"run `scontrol show node {name}` there"', []),
        ('description = "for sbatch and squeue"', []),
        ('"""Wait for scontrol."""', []),
        ('path = "/var/log/sacct.log"', []),
    ],
)
def test_commands_are_distinguished_from_messages(source: str, commands: list[str]) -> None:
    assert list(find_commands(source)) == commands


def test_commands_are_rendered() -> None:
    assert show_nodes() == "scontrol show node --oneliner"
    assert show_nodes(["gpu-1", "gpu-2"]) == "scontrol show node --oneliner gpu-1,gpu-2"
    assert update_nodes("gpu-[1-2]", "drain", "it's slow") == [
        *("scontrol", "update", "nodename=gpu-[1-2]", "state=drain", "reason=it's slow")
    ]


def test_node_lists_are_parsed() -> None:
    (first, second) = parse_listed("gpu-[1-2]|idle~|none\nslurm_load_partitions: error\ngpu-3|drained|a|b\n")
    assert (first.node, first.state, first.reason) == ("gpu-[1-2]", "idle~", "")
    assert (first.works, first.is_up, first.drained) == (True, False, False)
    assert (second.node, second.reason, second.drained) == ("gpu-3", "a|b", True)
    (row,) = parse_listed_by_partition("gpu|gpu-1|idle|none\n")
    assert (row.partition, row.node, row.is_up) == ("gpu", "gpu-1", True)
    assert parse_partitions("PartitionName=gpu Nodes=x State=UP TotalCPUs=2") == {"gpu": "UP"}


def test_job_lists_are_parsed() -> None:
    ann = RunningJob("7", "ann", "a|b")
    assert parse_running("7|ann|a|b\nnonsense\n") == RunningJobs((ann,))
    assert parse_running("7|ann|a|b\n+250\n") == RunningJobs((ann,), 250)
    assert parse_running("") == RunningJobs()
    assert parse_jobs(["7|ann|gpu|RUNNING|1:00|2|gpu-[1-2]|a", "error"]) == (
        ListedJob("7", "ann", "gpu", "RUNNING", "1:00", "2", "gpu-[1-2]", "a"),
    )
    assert parse_on_node("7|RUNNING|1-00:00:03\n8_1|CONFIGURING|0:00\n9+1|RUNNING|INVALID\n") == (
        NodeJob("7", "RUNNING", "1-00:00:03"),
        NodeJob("8_1", "CONFIGURING", "0:00"),
        NodeJob("9+1", "RUNNING", "INVALID"),
    )
    assert (
        parse_on_node("slurm_load_jobs error\n7|RUNNING\n7|RUNNING|1:00|x\n 7|RUNNING|1:00\n--help|RUNNING|1:00\n")
        == ()
    )
    assert parse_pairs("gpu-1 7\ngpu-1 8\ngpu-2 7\n") == {"gpu-1": ["7", "8"], "gpu-2": ["7"]}


def test_config_values_are_parsed() -> None:
    config = "KillWait                = 30 sec\nSuspendExcNodes         = (null)\nResumeTimeout           = 600 sec\n"
    assert (read_seconds(config, "KillWait"), read_seconds(config, "SuspendTime")) == (30.0, None)
    assert read_nodes(config, "SuspendExcNodes") == ""
    assert read_next_job_id("NEXT_JOB_ID             = 26\nNodeFeaturesPlugins = (null)\n") == 26
    assert read_next_job_id(config) is None
    assert read_nodes("SuspendExcNodes = gpu-[1-2]", "SuspendExcNodes") == "gpu-[1-2]"


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("SLURM_CONF = /etc/slurm/slurm.conf\nSLURM_VERSION           = 26.05.5\n", "26.05"),
        ("SLURM_VERSION = 24.11.5", "24.11"),
        ("slurm_load_ctl_conf error: Unable to contact slurm controller", ""),
    ],
)
def test_release_of_slurmctld(text: str, release: str) -> None:
    assert read_release(text) == release
