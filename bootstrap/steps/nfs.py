"""NFS: a filesystem that a machine serves to the others, with the kernel's server or, without it, nfs-ganesha.

Clients come from the addresses of the cluster's nodes and from ports below 1024, which only root can use, so that users
cannot talk to the server as somebody else. Users are numbers, which are the same on all nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bootstrap.action import Action, install_packages, reload_units, write_file
from bootstrap.changes import Changes, change_units
from bootstrap.facts.model import Facts
from cluster.inventory import Inventory, Node, ServedFilesystem

PORT = 2049
Server = Literal["kernel", "ganesha"]
PACKAGES: dict[Server, tuple[str, ...]] = {
    "kernel": ("nfs-kernel-server",),
    "ganesha": ("nfs-ganesha", "nfs-ganesha-vfs"),
}
CLIENT_PACKAGES = ("nfs-common",)
UNITS: dict[Server, str] = {"kernel": "nfs-server", "ganesha": "nfs-ganesha"}
EXPORTS = "/etc/exports.d/muster.exports"
GANESHA_CONF = "/etc/ganesha/ganesha.conf"
SUPPORT = "nfsd"
# The client waits for as long as the server is away; after a restart of all machines, the mount waits for the server.
OPTIONS = "nfsvers=4.2,hard,retry=10000"
WANTS = "/etc/systemd/system/multi-user.target.wants"
SERVER_ANSWERS_S = 30
START_TIMEOUT_S = 120.0
MOUNT_UNIT = """\
[Unit]
Description=Shared filesystem at {where}
{order}Before=mariadb.service slurmdbd.service slurmctld.service slurmd.service

[Mount]
What={what}
Where={where}
Type={kind}
Options={options}
TimeoutSec=infinity
LazyUnmount=yes
ForceUnmount=yes

[Install]
WantedBy=multi-user.target
"""
REMOTE = "After=network-online.target\nWants=network-online.target\n"
GANESHA = """\
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; allow_set_io_flusher_fail = true; }}
NFSv4 {{ Only_Numeric_Owners = true; }}
{exports}"""
GANESHA_EXPORT = """\
EXPORT {{
  Export_Id = {number}; Path = {folder}; Pseudo = {folder}; SecType = sys; Squash = No_Root_Squash;
  PrivilegedPort = true; Access_Type = None;
  FSAL {{ Name = VFS; }}
  CLIENT {{ Clients = {clients}; Access_Type = RW; }}
}}
"""


@dataclass(frozen=True)
class _Mount:
    """A filesystem and where a node has it."""

    where: str
    what: str
    kind: str = "none"
    options: str = "bind"
    """By default, a folder of the node itself."""
    wait: str = ""
    """Shell text that waits until the filesystem can be mounted, if it is another machine's."""


def plan_server(facts: Facts, node: Node, inventory: Inventory) -> list[Action]:
    """Return the actions by which a node serves its filesystems, and has them at their mount points itself."""
    served = [each for each in inventory.served if each.node == node.name]
    kind = choose_server(facts)
    todo = _install(facts, PACKAGES[kind])
    for each in served:
        if each.mount not in facts.mounts:
            changes = Changes(folders=_list_parents(each.folder))
            todo.append(Action(f"create {each.folder}", f"mkdir -p {each.folder}", changes=changes))
        todo += _plan_mount(facts, _Mount(each.mount, each.folder))
    clients = [other.address for other in inventory.nodes if other.name != node.name]
    path, text = render_exports(kind, served, clients)
    written = write_file(facts, path, text)
    unit = UNITS[kind]
    if written or unit not in facts.active or unit not in facts.enabled:
        link = f"mkdir -p {WANTS} && ln -sfn /usr/lib/systemd/system/{unit}.service {WANTS}/{unit}.service"
        start = _start_kernel_server() if kind == "kernel" else _start_ganesha(unit in facts.active)
        log = f"journalctl -u {unit}"
        fix = f"look at `{log}` there, then run again"
        script, changes = f"{link}\n{start}", change_units(unit)
        todo += [
            *written,
            Action(f"start {unit}", script, timeout=START_TIMEOUT_S, log=log, fix=fix, changes=changes),
        ]
    return todo


def plan_client(facts: Facts, node: Node, inventory: Inventory) -> list[Action]:
    """Return the actions by which a node mounts what other nodes serve."""
    addresses = {other.name: other.address for other in inventory.nodes}
    todo: list[Action] = []
    for each in inventory.served:
        if each.node != node.name:
            server = addresses[each.node]
            wait = _await_server(each.node, server)
            todo += _plan_mount(facts, _Mount(each.mount, f"{server}:{each.folder}", "nfs4", OPTIONS, wait))
    return [*_install(facts, CLIENT_PACKAGES), *todo] if todo else []


def choose_server(facts: Facts) -> Server:
    """Return the server that muster has configured here, or the kernel's if it has one and this is not a container.

    A server that is in use stays, even if the kernel has learned to serve since: clients could not use the files that
    they have open, and both listen on the same port.
    """
    if EXPORTS in facts.files:
        return "kernel"
    # Its package has a configuration too, so only a server that was started counts; others' are refused beforehand.
    if GANESHA_CONF in facts.files and UNITS["ganesha"] in facts.loaded:
        return "ganesha"
    return "kernel" if facts.software.get(SUPPORT) == "yes" and not facts.container else "ganesha"


def print_support() -> str:
    """Return shell text that prints whether the kernel can serve NFS."""
    probe = "modprobe -n -q nfsd 2>/dev/null || grep -qw nfsd /proc/filesystems"
    return f'echo "software\t{SUPPORT}\t$(if {probe}; then echo yes; else echo no; fi)"\n'


def render_exports(kind: Server, served: Iterable[ServedFilesystem], clients: Iterable[str]) -> tuple[str, str]:
    """Return the file that says what the server serves to whom, and its content; without clients, it serves nothing.

    The kernel's server would serve a folder without clients to everybody.
    """
    listed = list(clients)
    if not listed:
        served = ()
    if kind == "kernel":
        options = "rw,sync,no_root_squash,no_subtree_check"
        lines = [f"{each.folder} {' '.join(f'{client}({options})' for client in listed)}\n" for each in served]
        return EXPORTS, "".join(lines)
    exports = "".join(
        GANESHA_EXPORT.format(number=number, folder=each.folder, clients=", ".join(listed))
        for number, each in enumerate(served, 1)
    )
    return GANESHA_CONF, GANESHA.format(exports=exports)


def name_mount_unit(mount: str) -> str:
    r"""Return the name that systemd requires of the unit of a mount point: /mnt/a-b is mnt-a\x2db.mount."""
    parts = mount.strip("/").split("/")
    return "-".join(part.replace("-", r"\x2d") for part in parts) + ".mount"


def _plan_mount(facts: Facts, mount: _Mount) -> list[Action]:
    """Return the actions that mount a filesystem now and at every boot."""
    unit = name_mount_unit(mount.where)
    order = REMOTE if mount.wait else ""
    text = MOUNT_UNIT.format(where=mount.where, what=mount.what, kind=mount.kind, options=mount.options, order=order)
    path, link = f"/etc/systemd/system/{unit}", f"{WANTS}/{unit}"
    written = write_file(facts, path, text)
    current = facts.mount_sources.get(mount.where)
    # A folder of the node itself is shown as the device that it is on. What muster has not mounted is left alone.
    moved = bool(mount.wait) and current not in (None, mount.what) and path in facts.files
    if not written and mount.where in facts.mounts and not moved:
        return []
    script = _refuse_jobs(mount, current) if moved else ""
    script += f"{mount.wait}mkdir -p {WANTS}\nln -sfn '{path}' '{link}'\n{reload_units(facts, unit)}"
    script += f"systemctl {'restart' if moved else 'start'} '{unit}'"
    changes = Changes(files=(link,), units=(unit,), folders=_list_parents(mount.where))
    fix = "look at the log there; other programs must not use the folder"
    log = f"journalctl -u '{unit}'"
    title = f"mount {mount.where} from {mount.what}" if moved else f"mount {mount.where}"
    return [
        *written,
        Action(title, script, timeout=START_TIMEOUT_S, log=log, fix=fix, changes=changes),
    ]


def _refuse_jobs(mount: _Mount, current: str | None) -> str:
    """Return shell text that fails while jobs run on the node: they would go on with files of the former server."""
    line = f"{mount.where} moves to {mount.what}: cancel or requeue the jobs that run here and use {current}"
    return f"if pgrep -x slurmstepd >/dev/null; then echo '{line}' >&2; exit 1; fi\n"


def _await_server(name: str, address: str) -> str:
    """Return shell text that waits until the server listens: a mount waits for hours and says nothing."""
    attempt = f"timeout 3 bash -c 'exec 3<>/dev/tcp/{address}/{PORT}' 2>/dev/null"
    return (
        f"end=$(($(date +%s) + {SERVER_ANSWERS_S}))\n"
        f'until {attempt}; do\n  if [ "$(date +%s)" -ge $end ]; then\n'
        f"    echo 'no answer from {name} ({address}) at port {PORT} (NFS): allow it in the firewall' >&2; exit 1\n"
        "  fi\n  sleep 0.5\ndone\n"
    )


def _start_kernel_server() -> str:
    # An owner's exports stay as they are: the kernel's server reads them all again.
    return f"systemctl start {UNITS['kernel']} && exportfs -ra"


def _start_ganesha(active: bool) -> str:
    # After a restart, clients wait until all have reclaimed their locks, for up to a minute and a half.
    return f"systemctl {'reload' if active else 'start'} {UNITS['ganesha']}"


def _install(facts: Facts, packages: tuple[str, ...]) -> list[Action]:
    missing = [name for name in packages if name not in facts.packages]
    return [install_packages(missing)] if missing else []


def _list_parents(folder: str) -> tuple[str, ...]:
    """Return a folder and those above it, from the top down."""
    parts = folder.strip("/").split("/")
    return tuple("/" + "/".join(parts[:number]) for number in range(1, len(parts) + 1))
