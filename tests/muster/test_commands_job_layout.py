"""`strategy: auto` at submission: the simulator chooses the layout for machines of the catalog, else the trainer."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess

import pytest

from cluster.inventory import Inventory, Node
from infra.home import Home
from muster.commands import job_layout, submit
from tests.muster.test_commands_parts import fake_ssh

REPO = Path(__file__).parents[2]
TRAIN = (REPO / "slurm" / "jobs" / "train.sbatch").read_text()
AUTO = ["llama-8b", "parallel.strategy=auto"]
PREFIX = "#!/bin/bash\n#SBATCH"


@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        (TRAIN, ["--nodes", "2", "--", *AUTO]),
        (f"{PREFIX} -N 4\n#SBATCH -p h100\npython -m trainer", ["--nodes", "4", "--group", "h100", "--", *AUTO]),
        (f"{PREFIX} --nodes=4\n#SBATCH --nodes 8\npython -m trainer", ["--nodes", "8", "--", *AUTO]),
        (f"{PREFIX} -J x -N4 --partition 'h100'\npython -m trainer", ["--nodes", "4", "--group", "h100", "--", *AUTO]),
        (f"{PREFIX} --nodes=4\npython -m trainer\n#SBATCH --nodes=8", ["--nodes", "4", "--", *AUTO]),
        (f"{PREFIX} --nodes='4\npython -m trainer", None),
        (f"{PREFIX} --nodes=2-4\npython -m trainer", None),
        ("#!/bin/bash\npython -m trainer", None),
        (f"{PREFIX} --nodes=2\nsrun hostname", None),
    ],
)
def test_only_training_jobs_with_a_fixed_node_count_are_simulated(job: str, arguments: list[str] | None) -> None:
    assert job_layout.build_question(job, AUTO) == arguments


def test_job_without_a_config_is_not_simulated() -> None:
    assert job_layout.build_question(TRAIN, []) is None


@pytest.mark.parametrize(
    ("result", "arguments", "message"),
    [
        (CompletedProcess([], 0, "a 'b c' d=1\n", "dp8: 2 s\n"), ["a", "b c", "d=1"], "layout: dp8: 2 s"),
        (CompletedProcess([], 0, "given\n", "nothing to choose: parallel.strategy is ddp\n"), ["given"], ""),
        (CompletedProcess([], 2, "", "simulator: no room\n"), ["given"], f"{job_layout.LEFT_TO_TRAINER}: no room"),
    ],
)
def test_simulator_answer_is_parsed(result: CompletedProcess[str], arguments: list[str], message: str) -> None:
    assert job_layout.parse_answer(result, ["given"]) == (arguments, message)


def test_job_gets_an_explicit_layout_on_catalog_machines(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submit_job(cluster, "aws-p5en-lustre", AUTO)
    assert "parallel.strategy=auto parallel.strategy=fsdp" in sent
    assert "batch.micro=" in sent
    message = " ".join(capfd.readouterr().out.split())
    assert "layout: dp16" in message
    assert "on 2 x p5en.48xlarge" in message


def test_nodes_option_overrides_the_job_file(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submit_job(cluster, "aws-p5en-lustre", AUTO, nodes=4)
    assert "sbatch --parsable --nodes=4 train.sbatch llama-8b" in sent
    assert "on 4 x p5en.48xlarge" in " ".join(capfd.readouterr().out.split())


def test_explicit_layout_is_unchanged(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submit_job(cluster, "aws-p5en-lustre", ["llama-8b"])
    assert sent.rstrip("'\n").endswith("train.sbatch llama-8b")
    assert "layout" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("stack", "arguments", "why"),
    [
        ("local", AUTO, "the simulator does not know the machines of target local"),
        ("aws-p5en-lustre", ["mine.yaml"], "mine.yaml"),
        ("aws-p5en-lustre", [*AUTO, "batch.size=1", "parallel.pipeline=2"], "no layout of batch.size 1 fits"),
    ],
)
def test_layout_is_left_to_the_trainer_with_a_reason(
    stack: str, arguments: list[str], why: str, cluster: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = submit_job(cluster, stack, arguments)
    assert sent.rstrip("'\n").endswith(" ".join(["train.sbatch", *arguments]))
    message = " ".join(capfd.readouterr().out.split())
    assert "left to the trainer" in message
    assert why in message


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home whose stacks have a login node that accepts every job and reports it as completed."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    ends = r"printf '\036state|COMPLETED|||0:0\n'"
    fake_ssh(tmp_path, monkeypatch, f'case "$*" in *sbatch*) echo "$*" >{tmp_path}/sent; echo 7 ;; *) {ends} ;; esac')
    return tmp_path


def submit_job(cluster: Path, stack: str, arguments: list[str], nodes: int | None = None) -> str:
    """Submit slurm/jobs/train.sbatch and return the command that ran on the login node."""
    login = Node(name="login", role="controller", address="a", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
    home = Home.of({"MUSTER_HOME": str(cluster)}).stack(stack)
    home.folder.mkdir()
    home.inventory.write_text(Inventory(cluster="c", target=stack.partition("-")[0], nodes=(login,)).model_dump_json())
    submit.submit(stack, "slurm/jobs/train.sbatch", arguments, nodes)
    return (cluster / "sent").read_text()
