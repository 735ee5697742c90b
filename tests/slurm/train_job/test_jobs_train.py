"""How train.sbatch starts torchrun on its nodes, and which mistakes it rejects before."""

from __future__ import annotations

import json
import os
import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.harness import wait_until
from tests.slurm.test_jobs_smoke import check_rendezvous
from tests.slurm.train_job.job_stubs import JOB, Run, Start, finish


def test_each_node_starts_the_trainer_with_its_own_address(job: Run, run_folder: Path) -> None:
    done = job("llama.yaml", "optimizer.lr=1e-4", "name=two words", OUTCOME="finished")
    assert done.returncode == 0, done.stderr
    first, second = [line for line in done.stdout.splitlines() if line.startswith("gpu-")]
    for line, address, is_host in ((first, "10.88.0.3", "true"), (second, "10.88.0.4", "false")):
        assert f"--local-addr={address} --rdzv-conf=is_host={is_host}," in line
        assert "--nnodes=2:2 --nproc-per-node=2 --max-restarts=3 " in line
        assert line.endswith(f"-m trainer llama.yaml optimizer.lr=1e-4 name=two words run.folder={run_folder}")


@pytest.mark.attack(2)
def test_nobody_can_guess_the_rendezvous_of_a_job(job: Run, tmp_path: Path) -> None:
    first, second = (job("llama.yaml", OUTCOME="finished").stdout for _ in range(2))
    check_rendezvous(tmp_path / "root", first, second)


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


def test_a_new_job_does_not_continue_that_of_an_earlier_cluster_with_the_same_id(job: Run, run_folder: Path) -> None:
    assert job(OUTCOME="finished", CHECKPOINT="00000010").returncode == 0
    weeks_ago = time.time() - 1e6
    os.utime(run_folder / "job", (weeks_ago, weeks_ago))
    new = {"OUTCOME": "finished", "SUBMITTED": f"{datetime.now():%Y-%m-%dT%H:%M:%S}"}
    before = sorted(run_folder.rglob("*"))
    done = job(**new)
    assert (done.returncode, done.stderr) == (
        2,
        f"train: FAILED: {run_folder} is the folder of an earlier job 12345: the ids of this cluster have started at 1 "
        f"again. Set RUN_FOLDER={run_folder} to continue that run, or another RUN_FOLDER for a new one\n",
    )
    assert sorted(run_folder.rglob("*")) == before
    # A person may continue it, a requeued job has been there before, and without an answer nothing is known.
    for variables in (
        new | {"RUN_FOLDER": str(run_folder)},
        new | {"SLURM_RESTART_COUNT": "1"},
        {"OUTCOME": "finished"},
    ):
        os.utime(run_folder / "job", (weeks_ago, weeks_ago))
        assert job(**variables).returncode == 0
    # slurmctld has forgotten that the job ran: it starts it again, and the folder is its own.
    assert job(**new).returncode == 0


def test_a_folder_of_another_user_is_rejected_while_slurm_hides_the_state_of_its_job(job: Run, tmp_path: Path) -> None:
    job(RUN_FOLDER="shared", OUTCOME="finished", SLURM_JOB_ID="777")
    (tmp_path / "states" / "777").write_text("hidden")
    done = job(RUN_FOLDER="shared", OUTCOME="finished", RUN_OWNER=f"{os.geteuid() + 1} ann")
    assert (done.returncode, done.stderr) == (
        2,
        f"train: FAILED: job 777 of ann may be training in {tmp_path}/shared, or may be over: Slurm does not show it "
        f"to you. Ask ann, and delete {tmp_path}/shared/job if it is over, or set another RUN_FOLDER\n",
    )
    assert (tmp_path / "shared" / "job").read_text() == "777\n"
    # The file is the user's own.
    assert job(RUN_FOLDER="shared", OUTCOME="finished").returncode == 0


@pytest.mark.parametrize(
    ("level", "state", "code"),
    [("Administrator", "hidden", 0), ("Operator", "hidden", 0), ("Administrator", "unanswered", 2), ("", "hidden", 2)],
)
def test_an_admin_may_use_a_folder_of_another_user_whose_job_slurm_has_forgotten(
    job: Run, tmp_path: Path, level: str, state: str, code: int
) -> None:
    job(RUN_FOLDER="shared", OUTCOME="finished", SLURM_JOB_ID="777")
    (tmp_path / "states" / "777").write_text(state)
    done = job(RUN_FOLDER="shared", OUTCOME="finished", RUN_OWNER=f"{os.geteuid() + 1} ann", ADMIN_LEVEL=level)
    assert done.returncode == code, done.stderr


def test_a_silent_scontrol_does_not_open_the_folder_of_a_running_job(job: Run, start: Start, tmp_path: Path) -> None:
    """The files of the running job stay as they are; once it has ended, its folder is free."""
    running = start(RUN_FOLDER="shared", OUTCOME="finished", SLURM_JOB_ID="777", TICKS="1200", UNTIL="end")
    assert running.stdout is not None
    seen = ""
    while "gpu-1: " not in seen:
        seen += running.stdout.readline()
    (tmp_path / "shared" / "stop").write_text("preempted")
    done = job(RUN_FOLDER="shared", OUTCOME="finished", SILENT="1")
    assert done.returncode == 2, done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"train: FAILED: {tmp_path}/shared is in use by job 777 (attempt 1), process ")
    assert message.endswith(
        "it has touched the lock just now: wait for it, or stop it (`scancel 777`); or set another RUN_FOLDER"
    )
    assert (tmp_path / "shared" / "job").read_text() == "777\n"
    assert (tmp_path / "shared" / "stop").read_text() == "preempted"
    assert list((tmp_path / "shared").glob(".joined-777.0")) != []
    (tmp_path / "shared" / "end").touch()
    finish(running)
    assert job(RUN_FOLDER="shared", OUTCOME="finished", SILENT="1").returncode == 0


def test_a_killed_job_script_gives_the_folder_back(job: Run, start: Start, tmp_path: Path) -> None:
    running = start(RUN_FOLDER="shared", OUTCOME="finished", SLURM_JOB_ID="777", TICKS="1200", UNTIL="end")
    assert running.stdout is not None
    while "gpu-1: " not in running.stdout.readline():
        pass
    lock = tmp_path / "shared" / ".lock"
    held = set(os.listdir(lock))
    running.kill()
    wait_until(lambda: set(os.listdir(lock)) != held, "the folder is given back")
    (tmp_path / "shared" / "end").touch()
    finish(running)
    assert job(RUN_FOLDER="shared", OUTCOME="finished", SILENT="1").returncode == 0


def test_a_home_folder_is_expanded(job: Run, tmp_path: Path) -> None:
    done = job("tiny-llama", "run.folder=~/runs/mine", OUTCOME="finished", HOME=str(tmp_path / "home"))
    assert f"run folder {tmp_path}/home/runs/mine," in done.stdout, done.stderr
    done = job("tiny-llama", OUTCOME="finished", RUN_FOLDER="~", HOME=str(tmp_path / "home"))
    assert f"run folder {tmp_path}/home," in done.stdout, done.stderr


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


def test_ranks_can_run_in_an_image_with_its_own_python(job: Run, tmp_path: Path) -> None:
    image = make_image(tmp_path)
    done = job(CONTAINER=str(image), OUTCOME="finished")
    assert done.returncode == 0, done.stderr
    assert f" --container={image} " in done.stdout
    assert done.stdout.count("of the image\n") == 2
    without = job(OUTCOME="finished")
    assert "--container" not in without.stdout
    assert "of the image" not in without.stdout


def test_a_run_keeps_the_version_of_the_image_that_it_started_with(job: Run, tmp_path: Path) -> None:
    image = make_image(tmp_path)
    name = tmp_path / "name"
    name.symlink_to(image)
    done = job(CONTAINER=str(name), OUTCOME="finished")
    assert done.returncode == 0, done.stderr
    assert f" --container={image} " in done.stdout
    assert str(name) not in done.stdout


@pytest.mark.parametrize(
    ("lacks", "listed"),
    [(("ip", "ss"), "ip, ss"), (("python",), "python"), (("bash",), "bash"), (("bash", "sh"), "sh")],
)
def test_an_image_without_a_program_is_rejected_before_the_ranks_start(
    job: Run, tmp_path: Path, lacks: tuple[str, ...], listed: str
) -> None:
    image = make_image(tmp_path)
    for name in {"sh", "bash", "python", "ip", "ss", "sed"}.difference(lacks):
        (image / name).symlink_to("/bin/sh")
    done = job(CONTAINER=str(image), STEP_PATH=str(image))
    fix = "install bash, sed, iproute2 and python with torch in the image"
    assert (done.returncode, done.stderr) == (2, f"train: FAILED: CONTAINER={image} lacks {listed}: {fix}\n")
    assert "did not join" not in done.stdout
    assert "torch" not in done.stdout
    assert "requeue" not in (tmp_path / "calls").read_text()


def test_an_image_without_torch_is_rejected_before_the_ranks_start(job: Run, tmp_path: Path) -> None:
    done = job(CONTAINER=str(make_image(tmp_path)), NO_TORCH="yes")
    assert done.returncode == 2
    assert " lacks torch: install bash, sed, iproute2 and python with torch in the image\n" in done.stderr
    assert "requeue" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ("gpu-1", "on gpu-1: no crun. Fix: install it. If only this node is to blame, sbatch --exclude=gpu-1\n"),
        ("gpu-2", "on all nodes: the output of the step says why\n"),
    ],
    ids=["the first node", "another node"],
)
def test_a_container_that_cannot_start_ends_the_job(job: Run, tmp_path: Path, node: str, message: str) -> None:
    image = make_image(tmp_path)
    done = job(CONTAINER=str(image), UNSTARTABLE=node)
    assert done.returncode == 2
    assert done.stderr.endswith(f"train: FAILED: CONTAINER={image} does not start {message}")
    assert "requeue" not in (tmp_path / "calls").read_text()


@pytest.mark.parametrize("node", ["gpu-1", "gpu-2"])
def test_a_job_whose_container_has_started_before_is_requeued(job: Run, tmp_path: Path, node: str) -> None:
    done = job(CONTAINER=str(make_image(tmp_path)), UNSTARTABLE=node, SLURM_RESTART_COUNT="1")
    assert done.returncode == 0, done.stderr
    assert "scontrol requeue 12345" in (tmp_path / "calls").read_text()


def test_a_node_without_a_program_is_named(job: Run, tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "bash").symlink_to("/bin/bash")
    assert "train: FAILED: gpu-2 lacks ip: install iproute2 there\n" in job(STEP_PATH=str(programs)).stderr


def test_an_image_that_does_not_exist_is_rejected(job: Run, tmp_path: Path) -> None:
    done = job(CONTAINER=f"{tmp_path}/images/trainer")
    message = f"CONTAINER={tmp_path}/images/trainer is not an image: it has no config.json"
    assert (done.returncode, message in done.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()


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
    elsewhere = tmp_path / "elsewhere"
    old = job(MUSTER_ROOT=str(elsewhere))
    message = (
        f"train: FAILED: no file {elsewhere}/slurm/jobs/train/main.sh: an admin runs `muster up`, which installs it\n"
    )
    assert (old.returncode, old.stderr) == (2, message)
    elsewhere.mkdir()
    (elsewhere / "slurm").symlink_to(tmp_path / "root" / "slurm")
    assert "no training environment at" in job(MUSTER_ROOT=str(elsewhere)).stderr
    bare = subprocess.run(["bash", str(JOB)], env={"SLURM_JOB_ID": "1", **os.environ}, capture_output=True, text=True)
    assert "train: FAILED: no config: sbatch train.sbatch CONFIG" in bare.stderr


def test_only_the_files_of_the_run_remain(job: Run, run_folder: Path) -> None:
    job(OUTCOME="finished")
    assert sorted(path.name for path in run_folder.iterdir()) == [".lock", "events.jsonl", "job", "outcome.json"]


def test_the_sbatch_options() -> None:
    header = {line.split()[1] for line in JOB.read_text().splitlines() if line.startswith("#SBATCH")}
    assert {"--requeue", "--signal=B:USR1@120", "--open-mode=append", "--output=%x-%j.out", "--nodes=2"} <= header


def test_all_nodes_use_the_files_that_the_link_led_to_at_the_start(job: Run, tmp_path: Path) -> None:
    """The first node to start points the link elsewhere, as an update of the cluster does."""
    link, python = tmp_path / "link", tmp_path / "root" / "env" / "bin" / "python"
    link.symlink_to("root")
    update = 'echo "files: $0 $PYTHONPATH"\nln -sfn elsewhere "$LINK"'
    python.write_text(python.read_text().replace("#!/bin/bash\n", f"#!/bin/bash\n{update}\n", 1))
    done = job(OUTCOME="finished", MUSTER_ROOT=str(link), LINK=str(link))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"files: {python} {tmp_path}/root\n") == 2


def make_image(folder: Path) -> Path:
    image = folder / "images" / "trainer"
    image.mkdir(parents=True)
    (image / "config.json").write_text("{}")
    # In the image, Python is where its PATH leads.
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/bash\necho "of the image"\nexec {folder}/root/env/bin/python "$@"\n')
    python.chmod(0o755)
    return image
