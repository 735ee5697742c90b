"""updates: nothing upgrades itself under running jobs; the kernel stays with the modules that were built for it."""

from __future__ import annotations

from bootstrap.action import Action, digest, mark, write
from bootstrap.desired import Desired
from bootstrap.facts.model import Facts
from bootstrap.steps.step import Step
from cluster.inventory import Node

# A library upgrade makes needrestart restart slurmd, and every job on the node dies with it.
NEEDRESTART = """\
# Written by muster.
$nrconf{restart} = 'l';
$nrconf{kernelhints} = -1;
$nrconf{override_rc}{qr(^slurm)} = 0;
$nrconf{override_rc}{qr(^sackd)} = 0;
$nrconf{override_rc}{qr(^mariadb)} = 0;
"""
APT = """\
// Written by muster: machines are replaced with a newer image, not upgraded while they work.
APT::Periodic::Update-Package-Lists "0";
APT::Periodic::Unattended-Upgrade "0";
// Images are still busy with themselves when they first boot.
DPkg::Lock::Timeout "300";
"""
# Driver, fabric and Lustre modules are built for one kernel.
HELD = (
    "^(linux-(image|headers|modules|aws|generic)|nvidia-|libnvidia-|cuda-drivers|gdrdrv|efa|libfabric|libnccl-ofi"
    "|lustre-client-)"
)
HOLD = f"""\
dpkg-query -W -f '${{Package}}\\n' | grep -E '{HELD}' | xargs -r apt-mark hold >/dev/null
systemctl stop apt-daily.timer apt-daily-upgrade.timer unattended-upgrades 2>/dev/null || true
"""
HOLD_S = 60.0


def actions(facts: Facts, node: Node, desired: Desired) -> list[Action]:  # noqa: ARG001
    todo = [
        *write(facts, "/etc/needrestart/conf.d/muster.conf", NEEDRESTART),
        *write(facts, "/etc/apt/apt.conf.d/99muster", APT),
    ]
    wanted = digest(HOLD, facts.kernel)
    if facts.markers.get("held") != wanted:
        todo.append(Action("hold kernel and drivers", f"{HOLD}{mark('held', wanted)}", timeout=HOLD_S))
    return todo


STEP = Step("updates", "kernel and drivers held, no restarts by themselves", actions)
