"""`strategy: auto` at submission: settled where the simulator knows the machines, left to the trainer elsewhere."""

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
    ("job", "words"),
    [
        (TRAIN, ["--nodes", "2", "--", *AUTO]),
        (f"{PREFIX} -N 4\n#SBATCH -p h100\npython -m trainer", ["--nodes", "4", "--group", "h100", "--", *AUTO]),
        (f"{PREFIX} --nodes=4\n#SBATCH --nodes 8\npython -m trainer", ["--nodes", "8", "--", *AUTO]),
        (f"{PREFIX} --nodes=2-4\npython -m trainer", None),
        ("#!/bin/bash\npython -m trainer", None),
        (f"{PREFIX} --nodes=2\nsrun hostname", None),
    ],
)
def test_a_training_job_with_a_fixed_number_of_nodes_is_simulated(job: str, words: list[str] | None) -> None:
    assert job_layout.build_question(job, AUTO) == words


def test_a_job_without_a_config_is_not_simulated() -> None:
    assert job_layout.build_question(TRAIN, []) is None


@pytest.mark.parametrize(
    ("done", "words", "message"),
    [
        (CompletedProcess([], 0, "a 'b c' d=1\n", "dp8: 2 s\n"), ["a", "b c", "d=1"], "layout: dp8: 2 s"),
        (CompletedProcess([], 0, "given\n", "nothing to choose: parallel.strategy is ddp\n"), ["given"], ""),
        (CompletedProcess([], 2, "", "simulator: no room\n"), ["given"], f"{job_layout.LEFT_TO_TRAINER}: no room"),
    ],
)
def test_an_answer_is_words_and_a_line(done: CompletedProcess[str], words: list[str], message: str) -> None:
    assert job_layout.parse_answer(done, ["given"]) == (words, message)


def test_on_known_machines_the_job_gets_explicit_words(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submitted(cluster, "aws-p5en-lustre", AUTO)
    assert "parallel.strategy=auto parallel.strategy=fsdp" in sent
    assert "batch.micro=" in sent
    message = " ".join(capfd.readouterr().out.split())
    assert "layout: dp16" in message
    assert "on 2 x p5en.48xlarge" in message


def test_a_number_of_nodes_weighs_more_than_the_job_files(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submitted(cluster, "aws-p5en-lustre", AUTO, nodes=4)
    assert "sbatch --parsable --nodes=4 train.sbatch llama-8b" in sent
    assert "on 4 x p5en.48xlarge" in " ".join(capfd.readouterr().out.split())


def test_an_explicit_layout_is_not_changed(cluster: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sent = submitted(cluster, "aws-p5en-lustre", ["llama-8b"])
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
def test_the_rest_is_submitted_as_it_is_and_message(
    stack: str, arguments: list[str], why: str, cluster: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = submitted(cluster, stack, arguments)
    assert sent.rstrip("'\n").endswith(" ".join(["train.sbatch", *arguments]))
    message = " ".join(capfd.readouterr().out.split())
    assert "left to the trainer" in message
    assert why in message


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of stacks whose login node takes every job and says that it has ended well."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    ends = r"printf '\036state|COMPLETED|||0:0\n'"
    fake_ssh(tmp_path, monkeypatch, f'case "$*" in *sbatch*) echo "$*" >{tmp_path}/sent; echo 7 ;; *) {ends} ;; esac')
    return tmp_path


def submitted(cluster: Path, stack: str, arguments: list[str], nodes: int | None = None) -> str:
    """What `muster submit slurm/jobs/train.sbatch` types on the login node."""
    login = Node(name="login", role="controller", address="a", host_key="k", machine_id="m", cpus=2, memory_mb=2048)
    home = Home.of({"MUSTER_HOME": str(cluster)}).stack(stack)
    home.folder.mkdir()
    home.inventory.write_text(Inventory(cluster="c", target=stack.partition("-")[0], nodes=(login,)).model_dump_json())
    submit.submit(stack, "slurm/jobs/train.sbatch", arguments, nodes)
    return (cluster / "sent").read_text()
