"""Operating system of a cloud machine: no automatic upgrades, and kernel settings for large clusters."""

from __future__ import annotations

from bootstrap.action import Action, digest, write_file, write_marker
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.image_contents import ImageContents
from bootstrap.steps.step import Step
from cluster.inventory import Node

# After a library upgrade needrestart would restart slurmd, and every job on the node would be killed.
NEEDRESTART = """\
# Written by muster.
$nrconf{restart} = 'l';
$nrconf{kernelhints} = -1;
$nrconf{override_rc}{qr(^slurm)} = 0;
$nrconf{override_rc}{qr(^sackd)} = 0;
$nrconf{override_rc}{qr(^mariadb)} = 0;
"""
APT_CONF = "/etc/apt/apt.conf.d/99muster"
LIST_SETTINGS = """\
Acquire::Languages "none";
Acquire::IndexTargets::deb::CNF::DefaultEnabled "false";
#clear APT::Update::Post-Invoke-Success;
"""
"""Settings of apt without which it fetches and reads lists that nobody needs here."""
APT = f"""\
// Written by muster: machines are replaced with a newer image instead of being upgraded while they work.
APT::Periodic::Update-Package-Lists "0";
APT::Periodic::Unattended-Upgrade "0";
// Images run apt themselves at their first boot.
DPkg::Lock::Timeout "300";
// By default `apt-get update` succeeds although it could not fetch a list, and the next installation fails instead.
APT::Update::Error-Mode "any";
Acquire::Retries "5";
// Nobody reads descriptions of packages here, nor searches for a package by its commands; both have lists of their own.
{LIST_SETTINGS}\
// A machine that loses power while packages are installed is replaced, so they need not reach its disk file by file.
DPkg::Options {{ "--force-unsafe-io"; }};
"""
# The modules of driver, fabric and Lustre are built for one kernel.
HELD_PACKAGES = (
    "^(linux-(image|headers|modules|aws|generic)|nvidia-|libnvidia-|cuda-drivers|gdrdrv|efa|libfabric|libnccl-ofi"
    "|lustre-client-)"
)
HOLD = f"""\
dpkg-query -W -f '${{Package}}\\n' | grep -E '{HELD_PACKAGES}' | xargs -r apt-mark hold >/dev/null
systemctl stop apt-daily.timer apt-daily-upgrade.timer unattended-upgrades 2>/dev/null || true
# A daily timer updates the index of manual pages; each installation would do it too.
rm -f /var/lib/man-db/auto-update
"""
HOLD_TIMEOUT_S = 60.0

SYSCTL_CONF = "/etc/sysctl.d/60-muster.conf"
SYSCTL_SETTINGS = """\
# Written by muster. Ranks that start together connect together; a large cluster has more neighbours than usual.
net.core.somaxconn = 65535
net.ipv4.tcp_max_syn_backlog = 65535
net.ipv4.neigh.default.gc_thresh1 = 0
net.ipv4.neigh.default.gc_thresh2 = 15360
net.ipv4.neigh.default.gc_thresh3 = 16384
net.core.rmem_max = 16777216
net.core.wmem_max = 16777216
# Checkpoints are written early and evenly, not in one burst.
vm.dirty_ratio = 5
vm.dirty_background_ratio = 3
vm.dirty_expire_centisecs = 1000
vm.vfs_cache_pressure = 50
# Libfabric copies between processes of one node, which needs ptrace permission.
kernel.yama.ptrace_scope = 0
"""


def plan_updates(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Turn automatic upgrades off, and hold the kernel and the packages that are built for it."""
    return _hold(facts)


def bake_updates(facts: Facts, contents: ImageContents) -> list[Action]:
    """Do the same in an image."""
    return _hold(facts)


def _hold(facts: Facts) -> list[Action]:
    todo = [
        *write_file(facts, "/etc/needrestart/conf.d/muster.conf", NEEDRESTART),
        *write_file(facts, APT_CONF, APT),
    ]
    hold_digest = digest(HOLD, facts.kernel)
    if facts.markers.get("held") != hold_digest:
        script = f"{HOLD}{write_marker('held', hold_digest)}"
        todo.append(Action("hold kernel and drivers", script, timeout=HOLD_TIMEOUT_S))
    return todo


def plan_sysctl(facts: Facts, node: Node, desired: Desired) -> list[Action]:
    """Set kernel parameters for many connections, many neighbours and large writes."""
    todo = write_file(facts, SYSCTL_CONF, SYSCTL_SETTINGS)
    if todo:
        # -e: ignore parameters that this kernel was built without.
        todo.append(Action("set kernel parameters", f"sysctl -q -e -p {SYSCTL_CONF}"))
    return todo


def skip_sysctl(facts: Facts, node: Node, desired: Desired) -> str:
    """Skip containers."""
    return "a container uses the kernel of its host" if facts.container else ""


UPDATES_STEP = Step("updates", "kernel and drivers held, no automatic restarts", plan_updates, bake=bake_updates)
SYSCTL_STEP = Step("sysctl", "kernel parameters", plan_sysctl, skip=skip_sysctl)
