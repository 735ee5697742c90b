"""Containers of jobs: reading bundles, the root tree, the environment, and what a container gets of its node."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from slurm.containers import __main__ as program
from slurm.containers.bundle import load_bundle
from slurm.containers.environment import DEFAULT_PATH, merge_environment
from slurm.containers.error import ContainerError, explain_system_error
from slurm.containers.host_libraries import LIBRARIES, choose_parts, parse_library_cache
from slurm.containers.launch import choose_folder
from slurm.containers.root_tree import plan_root, resolve_in
from slurm.containers.runtime_config import BindMount, Process, render_config

CONFIG = {"root": {"path": "rootfs"}, "process": {"env": ["PATH=/opt/bin", "EMPTY="], "cwd": "/work"}}
CACHE = """\
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibibverbs.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libibverbs.so.1
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6
"""


def write_bundle(folder: Path, config: Any) -> str:
    (folder / "rootfs").mkdir(parents=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return str(folder)


def create(image: Path, *paths: str) -> Path:
    """Create files, folders (`name/`) and links (`name->target`)."""
    for path in paths:
        name, _, target = path.partition("->")
        (image / name).parent.mkdir(parents=True, exist_ok=True)
        if target:
            (image / name).symlink_to(target)
        elif name.endswith("/"):
            (image / name).mkdir(exist_ok=True)
        else:
            (image / name).touch()
    return image


def test_a_bundle_is_read(tmp_path: Path) -> None:
    bundle = load_bundle(write_bundle(tmp_path / "a", CONFIG), "x86_64")
    assert bundle.root == tmp_path / "a" / "rootfs"
    assert bundle.environment == {"PATH": "/opt/bin", "EMPTY": ""}
    assert bundle.folder == "/work"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "its config.json is not valid JSON"),
        ("[]", "its config.json is not a JSON object"),
        ({"root": {"path": "none"}}, "none is not a folder"),
        (
            {"root": 1, "process": {"env": 1}, "annotations": {"org.opencontainers.image.architecture": "x"}},
            "is an image f",
        ),
        ({**CONFIG, "annotations": {"org.opencontainers.image.architecture": "arm64"}}, "is an image for arm64"),
    ],
)
def test_a_bad_bundle_is_refused_with_its_problem(tmp_path: Path, config: Any, problem: str) -> None:
    with pytest.raises(ContainerError, match=problem):
        load_bundle(write_bundle(tmp_path / "a", config), "x86_64")


def test_what_is_no_bundle_is_refused_and_a_typing_error_shows_the_names_that_exist(tmp_path: Path) -> None:
    write_bundle(tmp_path / "trainer", CONFIG)
    with pytest.raises(ContainerError, match=r"/trianer does not exist; .* has: trainer\. Fix: `muster image job"):
        load_bundle(str(tmp_path / "trianer"), "x86_64")
    with pytest.raises(ContainerError, match=r"is not a bundle: it has no config\.json"):
        load_bundle(str(tmp_path / "trainer" / "rootfs"), "x86_64")
    with pytest.raises(ContainerError, match="is a file, not a folder"):
        load_bundle(str(tmp_path / "trainer" / "config.json"), "x86_64")


@pytest.mark.parametrize(
    ("code", "path", "fix"),
    [
        (errno.ENOSPC, "/tmp/.muster-containers/a", "free space in /tmp of the node"),
        (errno.EDQUOT, "/tmp/.muster-containers/a", "free space in /tmp of the node"),
        (errno.EACCES, "/tmp/.muster-containers/a", "make /tmp of the node writable for you"),
        (errno.EACCES, "/images/a/rootfs/etc", "everything in /images/a must be there, and readable for you"),
        (errno.ESTALE, None, "everything in /images/a must be there, and readable for you"),
    ],
)
def test_only_a_full_disk_asks_for_space(code: int, path: str | None, fix: str) -> None:
    error = explain_system_error(OSError(code, os.strerror(code), path), "/images/a")
    where = path or "/images/a"
    assert str(error) == f"the container cannot be prepared: {where}: {os.strerror(code)}. Fix: {fix}"


def test_a_step_whose_folder_is_gone_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "environment").write_text("A=b\0")
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert program.main(["name", "/images/a", str(tmp_path / "environment"), "true"]) == 125
    assert capsys.readouterr().err == (
        "muster: the working folder of the step is gone (No such file or directory). "
        "Fix: choose another one with --chdir\n"
    )


def test_only_folders_with_a_missing_place_are_opened(tmp_path: Path) -> None:
    image = create(tmp_path, "usr/bin/sh", "etc/hosts", "opt/tool/a", "opt/b", "opt/c->b", "bin->usr/bin", "proc/")
    tree = plan_root(image, ["/proc", "/etc/hosts", "/opt/amazon/efa", "/shared"])
    assert tree.folders == ["/opt"]
    assert tree.mounts == ["/etc", "/opt/b", "/opt/tool", "/usr"]
    assert tree.links == {"/bin": "usr/bin", "/opt/c": "b"}


def test_folders_below_each_other_are_opened_together(tmp_path: Path) -> None:
    image = create(tmp_path, "var/lib/a/x", "var/lib/b/", "var/log/")
    tree = plan_root(image, ["/var/lib/c/d", "/var/lib/b"])
    assert tree.folders == ["/var", "/var/lib"]
    assert tree.mounts == ["/var/lib/a", "/var/log"]


@pytest.mark.parametrize(
    ("path", "resolved"),
    [
        ("/etc/resolv.conf", "/run/stub"),
        ("/var/run/slurm", "/run/slurm"),
        ("/escape/etc", "/etc"),
        ("/shared", "/shared"),
        ("/loop", "/loop"),
    ],
)
def test_links_of_an_image_lead_nowhere_outside(tmp_path: Path, path: str, resolved: str) -> None:
    image = create(tmp_path, "etc/resolv.conf->../run/stub", "var/run->/run", "escape->../../..", "loop->loop", "run/")
    assert resolve_in(image, path) == resolved


def test_the_image_decides_on_paths_and_the_user_stays_the_user() -> None:
    step = {"PATH": "/home/alice/bin", "LD_LIBRARY_PATH": "/node", "HOME": "/shared/home/alice", "SLURM_PROCID": "1"}
    merged = merge_environment(step, {"PATH": "/opt/bin", "HOME": "/root", "MODEL": "a"})
    assert merged == {"PATH": "/opt/bin", "HOME": "/shared/home/alice", "SLURM_PROCID": "1", "MODEL": "a"}
    assert merge_environment({}, {"HOME": "/tmp"}) == {"HOME": "/tmp", "PATH": DEFAULT_PATH}
    added = merge_environment({}, {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib"}, ["/host/lib"], ["/host/bin"])
    assert added == {"PATH": "/bin:/host/bin", "LD_LIBRARY_PATH": "/host/lib:/opt/lib"}


def test_a_container_gets_the_libraries_of_the_gpu_driver(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "dev/nvidiactl", "usr/bin/nvidia-smi")
    parts = choose_parts(create(tmp_path / "image", "usr/lib/"), parse_library_cache(CACHE), node)
    assert parts.mounts == {
        f"{LIBRARIES}/libcuda.so.1": "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        f"{LIBRARIES}/libnvidia-ml.so.1": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "/run/muster-host/bin/nvidia-smi": "/usr/bin/nvidia-smi",
    }
    assert parts.libraries == [LIBRARIES]
    assert parts.programs == ["/run/muster-host/bin"]


def test_the_libraries_of_the_fabric_are_the_images_own_if_it_has_them(tmp_path: Path) -> None:
    node = create(tmp_path / "node", "dev/infiniband/uverbs0", "opt/amazon/efa/lib/libfabric.so.1", "etc/libibverbs.d/")
    without = choose_parts(create(tmp_path / "bare", "usr/lib/"), parse_library_cache(CACHE), node)
    assert without.mounts == {
        f"{LIBRARIES}/libibverbs.so.1": "/usr/lib/x86_64-linux-gnu/libibverbs.so.1",
        "/etc/libibverbs.d": "/etc/libibverbs.d",
        "/opt/amazon/efa": "/opt/amazon/efa",
    }
    assert without.libraries == [LIBRARIES, "/opt/amazon/efa/lib"]
    image = create(tmp_path / "image", "usr/lib/x86_64-linux-gnu/libibverbs.so.1", "opt/amazon/efa/lib/")
    assert choose_parts(image, parse_library_cache(CACHE), node).mounts == {}
    assert choose_parts(tmp_path / "bare", parse_library_cache(CACHE), tmp_path / "plain").mounts == {}


@pytest.mark.parametrize(
    ("image_libc", "has_fabric", "owned"),
    [
        (b"GLIBC_2.2.5 GLIBC_2.41 GLIBC_PRIVATE", True, ""),
        # As text, 2.4 would come after 2.34.
        (b"GLIBC_2.2.5 GLIBC_2.4 GLIBC_2.31", False, "has 2.31"),
        (None, False, "has none"),
    ],
)
def test_libraries_that_need_a_newer_glibc_stay_outside(
    tmp_path: Path, image_libc: bytes | None, has_fabric: bool, owned: str
) -> None:
    libraries = "usr/lib/x86_64-linux-gnu"
    node = create(tmp_path / "node", "dev/infiniband/uverbs0", "dev/nvidiactl", "etc/libibverbs.d/")
    for name, needs in {
        f"{libraries}/libibverbs.so.1": b"GLIBC_2.34",
        "opt/amazon/efa/lib/libfabric.so.1": b"GLIBC_2.38",
    }.items():
        create(node, name).joinpath(name).write_bytes(b"\x7fELF GLIBC_2.2.5 " + needs)
    # As the image's own links lead, and not those of this machine.
    image = create(tmp_path / "image", "lib->/usr/lib", f"{libraries}/libc.so.6->/lib/libc-image.so", "usr/lib/")
    if image_libc is not None:
        (image / "usr/lib/libc-image.so").write_bytes(image_libc)
    parts = choose_parts(image, parse_library_cache(CACHE), node)
    driver = [f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.1"]
    fabric = [f"{LIBRARIES}/libibverbs.so.1", "/etc/libibverbs.d", "/opt/amazon/efa"]
    assert list(parts.mounts) == driver + (fabric if has_fabric else [])
    assert parts.libraries == [LIBRARIES, *(["/opt/amazon/efa/lib"] if has_fabric else [])]
    assert [warning.partition(": ")[0] for warning in parts.warnings] == [
        f"{what} of the node needs glibc {needed}, the image {owned}"
        for what, needed in (("RDMA verbs", "2.34"), ("/opt/amazon/efa", "2.38"))
        if not has_fabric
    ]


def test_a_task_starts_in_the_folder_of_its_step_if_the_container_has_it(tmp_path: Path) -> None:
    image = create(tmp_path, "work/")
    assert choose_folder("/shared/home/alice", "/work", image, ["/shared"]) == "/shared/home/alice"
    assert choose_folder("/root", "/work", image, ["/shared"]) == "/work"
    assert choose_folder("/sharedness", "/none", image, ["/shared"]) == "/"


def test_users_are_themselves_and_the_image_stays_unchanged() -> None:
    mounts = [BindMount("/image/usr", "/usr", read_only=True), BindMount("/tmp", "/tmp", recursive=False)]
    config = render_config("/tmp/root", mounts, Process(2001, 2002, "/shared", ["sh", "-c", "id"], {"A": "b=c"}))
    assert config["linux"]["uidMappings"] == [{"containerID": 2001, "hostID": 2001, "size": 1}]
    assert config["linux"]["gidMappings"] == [{"containerID": 2002, "hostID": 2002, "size": 1}]
    assert [mount["options"] for mount in config["mounts"]] == [["rbind", "rprivate", "ro"], ["bind", "rprivate"]]
    assert config["process"]["env"] == ["A=b=c"]
    assert config["process"]["noNewPrivileges"]
