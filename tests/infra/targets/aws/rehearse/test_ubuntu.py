"""The stand-ins of AWS's images: set-up finds a kernel with a Lustre client, and the names of what it installs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bootstrap.facts.model import Facts
from bootstrap.lustre_kernels import choose_kernel
from bootstrap.steps.cloud import lustre_client
from bootstrap.steps.packages import COMPILER
from infra.targets.aws.node.cloud import LUSTRE_CLIENT
from infra.targets.aws.rehearse.machine import API_ADDRESS, MIRROR_ADDRESS
from infra.targets.aws.rehearse.names_of_aws import resolve_name
from infra.targets.aws.rehearse.ubuntu import GPU_KERNEL, HOME, PLAIN_KERNEL, list_image_files, read_program
from tests.bootstrap.test_lustre_kernels import NAMES, Machine


def list_packages(folder: str) -> set[str]:
    prefix = f"{HOME}/{folder}/"
    files = list_image_files(has_gpus=False)
    return {path.removeprefix(prefix).partition("/")[0] for path in files if path.startswith(prefix)}


def test_the_plain_image_needs_another_kernel_and_the_gpu_image_does_not() -> None:
    packages = list_packages("lustre-repository")
    assert choose_kernel(PLAIN_KERNEL, packages) == GPU_KERNEL
    assert choose_kernel(GPU_KERNEL, packages) == GPU_KERNEL
    assert list_image_files(has_gpus=True)[f"{HOME}/kernel"].content == f"{GPU_KERNEL}\n"


def test_the_script_of_the_client_uses_only_tools_that_have_a_stand_in() -> None:
    files = list_image_files(has_gpus=False)
    tools = {path.rpartition("/")[2] for path in files if path.startswith("usr/local/")}
    scripts = (lustre_client.SCRIPT, lustre_client.SWITCH_SCRIPT, lustre_client.finish_client(Facts(kernel="any")))
    for tool in ("apt-get", "apt-cache", "gpg", "modprobe", "update-grub"):
        assert tool in "\n".join(scripts)
        assert tool in tools


def test_the_stand_in_of_gpg_answers_the_script_of_the_client(tmp_path: Path) -> None:
    machine = Machine(tmp_path, NAMES)
    stand_in = machine.tools / "gpg"
    stand_in.write_text(list_image_files(has_gpus=False)["usr/local/bin/gpg"].content)
    stand_in.chmod(0o755)
    # The rehearsal's key is not the one of AWS.
    machine.fingerprint = LUSTRE_CLIENT.fingerprint
    done = machine.run("6.8.0-1041-aws")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "usr/share/keyrings/muster-lustre-client.gpg").stat().st_size > 0


def test_packages_of_set_up_can_be_installed() -> None:
    assert {
        *COMPILER,
        "nfs-common",
        "stunnel4",
        "build-essential",
        "fakeroot",
        "devscripts",
        "equivs",
    } <= list_packages("packages")


@pytest.mark.parametrize(("ago_s", "left"), [(0, "0.40"), (6, "0.10"), (60, "0.00")])
def test_an_installation_waits_for_what_is_left_of_the_time_that_lists_take(
    tmp_path: Path, ago_s: int, left: str
) -> None:
    """At speed 20, 8 s of AWS are 0.4 s here; what set-up does meanwhile takes as long as on AWS."""
    for name, text in {"lists-began": f"{1000 - ago_s}.000", "list-seconds": "8.00", "speed": "20"}.items():
        (tmp_path / name).write_text(f"{text}\n")
    functions = read_program("apt-get.sh").content.partition("# Lustre's packages")[0]
    script = functions.replace(f"home=/{HOME}", f"home={tmp_path}; date() {{ echo 1000.000; }}") + "print_lists_left"
    done = subprocess.run(["bash", "-s", "update"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == left


def run_apt_get(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the stand-in of apt-get with the packages of a folder; it installs nothing if it refuses a name."""
    (home / "packages" / "unpacked").mkdir(parents=True, exist_ok=True)
    script = read_program("apt-get.sh").content.replace(f"home=/{HOME}", f"home={home}")
    return subprocess.run(["bash", "-c", script, "apt-get", *arguments], capture_output=True, text=True, check=False)


def test_a_machine_with_files_of_packages_has_no_others(tmp_path: Path) -> None:
    refused = run_apt_get(tmp_path, "install", "-y", "unpacked", "--with-source", "/archive/crun_1.0_all.deb")
    assert (refused.returncode, refused.stderr) == (100, "E: Unable to locate package unpacked\n")


def test_the_controller_downloads_packages_of_the_mirror_that_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "archives"
    folder.mkdir()
    options = ("-o", f"Dir::Cache::archives={folder}", "install", "-y")
    assert run_apt_get(tmp_path, *options, "--download-only", "unpacked", "/slurm/slurm-smd_1_all.deb").returncode == 0
    assert [path.name for path in folder.iterdir()] == ["unpacked_1.0_all.deb"]
    listed = run_apt_get(tmp_path, *options, "--print-uris", "unpacked").stdout
    assert listed.startswith("'http://mirror/unpacked_1.0_all.deb' ")
    refused = run_apt_get(tmp_path, *options, "--download-only", "unheard-of")
    assert (refused.returncode, refused.stderr) == (100, "E: Unable to locate package unheard-of\n")


def test_a_filesystem_has_a_name_only_while_it_can_be_mounted() -> None:
    name = "fs-0123abcd.fsx.us-east-1.amazonaws.com"
    assert resolve_name(name, {}, [], []) is None
    assert resolve_name(name, {}, ["fs-0123abcd"], []) == API_ADDRESS
    assert resolve_name("fs-0123abcd.efs.us-east-1.amazonaws.com", {}, ["fs-0123abcd"], []) == API_ADDRESS


def test_public_servers_have_an_address_and_the_rest_of_the_internet_has_none() -> None:
    public = ["github.com", "keys.s3.amazonaws.com"]
    assert [resolve_name(name, {}, [], public) for name in public] == [MIRROR_ADDRESS, MIRROR_ADDRESS]
    assert resolve_name("s3.us-east-1.amazonaws.com", {}, [], public) == API_ADDRESS
    assert resolve_name("example.com", {}, [], public) is None
