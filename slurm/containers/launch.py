"""Start the container of one task: prepare its root and configuration in the job's own /tmp, then become crun."""

from __future__ import annotations

import errno
import grp
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.containers.bundle import load_bundle
from slurm.containers.environment import merge_environment
from slurm.containers.error import ContainerError
from slurm.containers.host_libraries import HostParts, choose_parts, parse_library_cache
from slurm.containers.root_tree import plan_root, resolve_in
from slurm.containers.runtime_config import BindMount, Process, render_config

RUNTIME = "crun"
PROGRAMS = "/usr/local/bin:/usr/bin:/bin"
FOLDERS = Path("/tmp/.muster-containers")  # noqa: S108  # private to the job, and removed with it
MIN_FREE_BYTES = 1 << 20
"""What crun writes needs less."""
_KERNEL = ("/proc", "/sys", "/dev")
_PRIVATE = ("/tmp", "/var/tmp")  # noqa: S108
_NAMES = ("/etc/hosts", "/etc/resolv.conf")
# Where Slurm's commands find the configuration and slurmd, which signs their messages.
_SLURM = ("/run/slurm", "/run/slurmd")
_CONFIGURATION = Path("/run/slurm/conf")
_BATCH_SCRIPT = re.compile(r"/.*/job\d+/slurm_script")
_USER_NAMESPACES = {"/proc/sys/user/max_user_namespaces": "0", "/proc/sys/kernel/unprivileged_userns_clone": "0"}


@dataclass(frozen=True)
class Task:
    """One task of a step, as Slurm starts it."""

    name: str
    """Node, job, step and task: no other container has this name."""
    bundle: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str


def launch(task: Task, shared: Iterable[str]) -> None:
    """Replace this process by the container; raise ContainerError or OSError if it cannot start.

    `shared` are the folders of the node that every container has, such as shared filesystems.
    """
    runtime = find_runtime()
    image = load_bundle(task.bundle, platform.machine())
    own = FOLDERS / task.name
    # Left by an attempt of a job that was requeued to this node, if /tmp is not private.
    shutil.rmtree(own, ignore_errors=True)
    (own / "root").mkdir(parents=True, mode=0o755)
    own.chmod(0o700)
    if shutil.disk_usage(own).free < MIN_FREE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(own))
    command = _receive_batch_script(task.command, own)
    accounts = _write_accounts(image.root, own)
    parts = choose_parts(image.root, _read_library_cache())
    # One line for a step, whose tasks all get the same.
    if task.environment.get("SLURM_PROCID", "0") == "0":
        for warning in parts.warnings:
            print(f"muster: warning: {warning}", file=sys.stderr)
    mounts = list(_list_mounts(image.root, shared, accounts, parts))
    tree = plan_root(image.root, (mount.place for mount in mounts))
    for folder in tree.folders:
        (own / "root" / folder[1:]).mkdir()
    for place, target in tree.links.items():
        (own / "root" / place[1:]).symlink_to(target)
    process = Process(
        user=os.getuid(),
        group=os.getgid(),
        folder=choose_folder(task.folder, image.folder, image.root, [mount.place for mount in mounts]),
        command=command,
        environment=merge_environment(task.environment, image.environment, parts.libraries, parts.programs),
        terminal=os.isatty(0),
    )
    of_image = (BindMount(f"{image.root}{path}", path, read_only=True) for path in tree.mounts)
    config = render_config(str(own / "root"), [*of_image, *mounts], process)
    (own / "config.json").write_text(json.dumps(config))
    options = [f"--root={own}/state", "--cgroup-manager=disabled"]
    # Among slurmd's own variables is one that makes crun talk to systemd.
    os.execve(runtime, [RUNTIME, *options, "run", f"--bundle={own}", task.name], {"PATH": PROGRAMS})  # noqa: S606


def find_runtime() -> str:
    """Return the path of crun; raise ContainerError if this node cannot run containers for ordinary users."""
    runtime = shutil.which(RUNTIME, path=PROGRAMS)
    if runtime is None:
        raise ContainerError(f"{RUNTIME} is not installed on this node", "an admin runs `muster up`, which installs it")
    for setting, off in _USER_NAMESPACES.items():
        path = Path(setting)
        if path.exists() and path.read_text().strip() == off:
            name = setting.removeprefix("/proc/sys/").replace("/", ".")
            raise ContainerError("users may not create user namespaces on this node", f"set the sysctl {name}")
    return runtime


def choose_folder(step: str, image: str, root: Path, mounted: Iterable[str]) -> str:
    """Return the step's working folder if the container has it, which is where jobs write, or else the image's."""
    if any(step == place or step.startswith(f"{place}/") for place in mounted):
        return step
    return image if (root / resolve_in(root, image)[1:]).is_dir() else "/"


def _receive_batch_script(command: Sequence[str], own: Path) -> list[str]:
    """Return the command; Slurm keeps a batch script in a folder that containers do not have."""
    if not (command and _BATCH_SCRIPT.fullmatch(command[0])):
        return list(command)
    script = own / "slurm_script"
    shutil.copyfile(command[0], script)
    script.chmod(0o700)
    return [str(script), *command[1:]]


def _write_accounts(image: Path, own: Path) -> dict[str, str]:
    """Write the image's lists of users and groups with the user in them, and return them by their place."""
    uid, gid = os.getuid(), os.getgid()
    try:
        user, group = pwd.getpwuid(uid), grp.getgrgid(gid).gr_name
    except KeyError as error:
        what = f"the node does not know user {uid} or group {gid}: {error.args[0]}"
        raise ContainerError(what, f"an admin runs `getent passwd {uid}` on the node") from None
    lines = {
        "/etc/passwd": f"{user.pw_name}:x:{user.pw_uid}:{gid}:{user.pw_gecos}:{user.pw_dir}:/bin/sh\n",
        "/etc/group": f"{group}:x:{gid}:\n",
    }
    for place, line in lines.items():
        source = image / resolve_in(image, place)[1:]
        text = source.read_text(errors="replace") if source.is_file() else ""
        # The first line with an id or a name counts.
        (own / Path(place).name).write_text(line + text)
    return {place: str(own / Path(place).name) for place in lines}


def _list_mounts(
    image: Path, shared: Iterable[str], accounts: Mapping[str, str], parts: HostParts
) -> Iterable[BindMount]:
    """Yield what a container has of its node; a mount inside of another one comes with it."""
    own = [place for place in (*_KERNEL, *_PRIVATE, *shared, *_SLURM) if Path(place).exists()]
    if _CONFIGURATION.is_symlink():
        own.append(str(_CONFIGURATION.resolve()))
    for place in dict.fromkeys(own):
        if not any(place.startswith(f"{other}/") for other in own):
            # Below /tmp is this container's own root.
            yield BindMount(place, resolve_in(image, place), recursive=place not in _PRIVATE)
    for place in _NAMES:
        yield BindMount(place, resolve_in(image, place), read_only=True)
    for place, source in (*accounts.items(), *parts.mounts.items()):
        yield BindMount(source, resolve_in(image, place), read_only=True)


def _read_library_cache() -> Mapping[str, str]:
    try:
        done = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=False)
    except OSError:
        return {}
    return parse_library_cache(done.stdout)
