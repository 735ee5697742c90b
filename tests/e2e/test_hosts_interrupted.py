"""Machines that somebody owns, and an `up` that is killed, cut off while it copies, or loses a machine that restarts.

All interruptions hit the same machines, one after the other; then they are given back.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.bare_machines import differences
from tests.e2e.rack import HEAD, HOSTS, UNCHECKED, Rack, open_rack
from tests.faults.interruption import clear_progress, kill_at, progress
from tests.harness import Spec, Stack, wait_until

pytestmark = pytest.mark.nightly

CUT_AFTER_KB = 600
# Every connection to sshd is reset after this amount, in the middle of what is being copied.
CUT = f"""nft add table inet cut
nft add chain inet cut input '{{ type filter hook input priority 0; }}'
nft add rule inet cut input tcp dport 22 quota over {CUT_AFTER_KB} kbytes reject with tcp reset
"""
HEAL = "nft delete table inet cut"
# A soft reboot unmounts what a real machine's fstab mounts again, and these machines have no fstab.
KEEP_MOUNTS = """mkdir -p /run/systemd/system/mount.d
printf '[Unit]\\nDefaultDependencies=no\\n' >/run/systemd/system/mount.d/keep.conf
systemctl daemon-reload
"""
RESTARTING = "rack1-1"
WORKING = '"bootstrap", "node": "cpu-1", "step": "(?!facts)'
REBOOTS = "systemctl show --property SoftRebootsCount --value"
# Folders that the daemons have filled are moved aside by teardown, not deleted.
BACKUPS = "/var/backups/muster"


@pytest.fixture(scope="module")
def rack(make_stack: Callable[[str, Spec], Stack], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    with open_rack(make_stack, tmp_path_factory.mktemp("rack")) as opened:
        yield opened


@pytest.fixture(scope="module")
def before(rack: Rack) -> dict[str, dict[str, str]]:
    """Return what was on the machines before the first `up`."""
    return {host: rack.machines.snapshot(host) for host in HOSTS}


@pytest.mark.fault(22)
def test_killed_up_leaves_no_process(rack: Rack, before: dict[str, dict[str, str]]) -> None:
    assert set(before) == set(HOSTS)
    kill_at(rack.stack, "a machine is claimed", lambda _: is_claimed(rack), "up", UNCHECKED)
    kill_at(rack.stack, "bootstrap has begun", lambda stack: '"bootstrap"' in progress(stack), "up", UNCHECKED)


@pytest.mark.fault(20)
def test_a_connection_that_is_reset_while_it_copies_is_named(rack: Rack) -> None:
    rack.machines.run(HEAD, CUT)
    try:
        output = fail_up(rack.stack)
    finally:
        rack.machines.run(HEAD, HEAL)
    assert re.search(r"node controller, step [a-z-]+: the connection was lost", output), output


def test_a_machine_that_restarts_during_up(rack: Rack) -> None:
    """Restart the userspace only: the containers' addresses would change with them."""
    rack.machines.run(RESTARTING, KEEP_MOUNTS)
    clear_progress(rack.stack)

    def restart() -> None:
        wait_until(lambda: bool(re.search(WORKING, progress(rack.stack))), "a step of the node")
        rack.machines.run(RESTARTING, "systemctl soft-reboot")

    restarter = threading.Thread(target=restart)
    restarter.start()
    output = fail_up(rack.stack)
    restarter.join()
    assert re.search(r"node cpu-1, step [a-z-]+: the connection was lost", output), output
    assert rack.machines.run(RESTARTING, REBOOTS) == "1\n"


@pytest.mark.fault(22)
def test_the_next_up_completes_the_cluster(rack: Rack) -> None:
    kill_at(rack.stack, "the ready job runs", lambda stack: '"ready"' in progress(stack), "up", UNCHECKED)
    rack.stack.up(UNCHECKED)
    job = "srun -p cpu -N2 hostname | sort"
    assert rack.stack.ssh("controller", job, user="muster").splitlines() == ["rack1-1", "rack1-2"]
    assert "nothing to change" in rack.stack.up(UNCHECKED).stdout


def test_the_machines_are_given_back_as_they_were(rack: Rack, before: dict[str, dict[str, str]]) -> None:
    rack.stack.up(UNCHECKED)
    printed = rack.stack.muster("teardown", "--yes", "--force").stdout
    for host in HOSTS:
        assert re.search(rf"{host}: \d+ restored, \d+ removed, 0 left", printed), printed
        rack.machines.run(host, f"rm -r {BACKUPS}/var && rmdir --ignore-fail-on-non-empty {BACKUPS}")
        assert differences(before[host], rack.machines.snapshot(host)) == {}


def is_claimed(rack: Rack) -> bool:
    """Return whether any of the machines belongs to a cluster."""
    return any(rack.machines.roots[host].run("test -e /var/lib/muster/record/claim").code == 0 for host in HOSTS)


def fail_up(stack: Stack) -> str:
    """Return what an `up` prints that has to fail, on one line."""
    done = stack.up(UNCHECKED, check=False)
    output = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0, output
    assert "Traceback" not in output
    return output
