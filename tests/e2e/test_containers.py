"""Jobs in containers: `srun --container` and `sbatch --container` of users on a real cluster."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness import Stack, wait_until
from tests.small_bundle import create_bundle

BUNDLE = "/shared/images/tools"
NODES = ("gpu-1", "gpu-2")


@pytest.fixture(scope="module")
def bundle(cluster: Stack) -> str:
    cluster.ssh("controller", f"set -e\n{create_bundle(BUNDLE)}", user="root")
    return BUNDLE


def run(stack: Stack, command: str) -> str:
    return stack.ssh("login", f"cd ~; {command} 2>&1", user="alice", check=False)


def test_srun_runs_tasks_on_two_nodes_in_the_image_as_the_user(cluster: Stack, bundle: str) -> None:
    script = "cat /MARKER; echo $(hostname) $(id -un) $FROM $PWD ${GLOO_SOCKET_IFNAME:+interface} $SLURM_NTASKS"
    out = run(cluster, f"srun -Q -p gpu -N2 --ntasks-per-node=1 --container={bundle} bash -c '{script}'")
    assert sorted(out.splitlines()) == [f"{node} alice image /shared/home/alice interface 2" for node in NODES]


def test_sbatch_runs_its_script_in_the_image(cluster: Stack, bundle: str) -> None:
    options = f"-p gpu -N1 --wait -o in-image.out --container={bundle}"
    out = run(cluster, f"sbatch --parsable {options} --wrap 'ls /; exit 3' >/dev/null; echo code $?; cat in-image.out")
    assert out.splitlines()[0] == "code 3"
    assert "MARKER" in out.splitlines()
    assert "root" not in out.splitlines()


def test_a_bundle_that_does_not_exist_is_named_with_those_that_do(cluster: Stack, bundle: str) -> None:
    out = run(cluster, "srun -Q -p gpu --container=/shared/images/tool true")
    assert "muster: --container=/shared/images/tool does not exist; /shared/images has: tools. Fix:" in out


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["scancel", "time limit"])
def test_nothing_of_a_container_is_left_when_its_job_ends(cluster: Stack, bundle: str, end: str) -> None:
    limit = "-t 1" if end == "time limit" else ""
    work = "touch ~/in-container; setsid sleep 9871 & sleep 9872 & sleep 9873"
    options = f"-p gpu -w gpu-1 -N1 {limit} -o /dev/null --container={bundle}"
    job = run(cluster, f"rm -f in-container; sbatch --parsable {options} --wrap '{work}'")
    count = "pgrep -xfc 'sleep 987[123]' || true"
    wait_until(lambda: cluster.ssh("gpu-1", count, user="root") == "3", f"job {job} runs")
    if end == "scancel":
        run(cluster, f"scancel {job}")
    wait_until(lambda: run(cluster, f"squeue -h -j {job}") == "", f"job {job} ends")
    assert cluster.ssh("gpu-1", count, user="root") == "0"
    left = "ls -d /tmp/.muster-containers /var/lib/slurm/slurmd/oci-job* 2>/dev/null || true"
    assert cluster.ssh("gpu-1", left, user="root") == ""
    state = run(cluster, f"sacct -X -n -P -o State -j {job}")
    assert state.startswith("CANCELLED" if end == "scancel" else "TIMEOUT")
    wait_until(lambda: cluster.ssh("gpu-1", "sinfo -h -n gpu-1 -o %t", user="root") == "idle", "gpu-1 is idle")


@pytest.mark.nightly
def test_an_interactive_shell_has_a_terminal(cluster: Stack, bundle: str) -> None:
    command = f"srun -p gpu --pty --container={bundle} bash -c '[ -t 0 ] && echo terminal'"
    assert "terminal" in run(cluster, f'script -qec "{command}" /dev/null')


@dataclass(frozen=True)
class Image:
    """A context for builds: a Dockerfile on top of nothing, and a few programs of this machine."""

    folder: Path
    stack: Stack

    def build(self, *options: str) -> str:
        dockerfile = str(self.folder / "Dockerfile")
        return self.stack.muster("image job", dockerfile, "--name", "greeter", *options).stdout


@pytest.fixture
def image(cluster: Stack, tmp_path: Path) -> Image:
    subprocess.run(["bash", "-ec", create_bundle(str(tmp_path / "small"))], check=True)
    lines = ("FROM scratch", "COPY small/rootfs/ /", "ARG WORD=hello", "ENV WORD=$WORD PATH=/usr/bin")
    (tmp_path / "Dockerfile").write_text("\n".join(lines))
    return Image(tmp_path, cluster)


@pytest.mark.nightly
def test_a_dockerfile_becomes_an_image_for_jobs_and_is_replaced_by_the_next_one(cluster: Stack, image: Image) -> None:
    greet = "srun -Q -p gpu -w gpu-1 --container=/shared/images/greeter bash -c 'echo $WORD; ls /MARKER'"
    assert "✓ /shared/images/greeter: " in image.build()
    assert run(cluster, greet) == "hello\n/MARKER"
    assert "has this image already; nothing was copied" in image.build()
    assert "✓ /shared/images/greeter: " in image.build("--build-arg", "WORD=goodbye")
    assert run(cluster, greet) == "goodbye\n/MARKER"
    versions = "ls -A /shared/images/.greeter | wc -l"
    assert cluster.ssh("controller", versions, user="root") == "2"
