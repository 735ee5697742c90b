"""Adopting and releasing a real machine over SSH: its claim, and packages, accounts, units and files as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
import yaml

from bootstrap.changes import ACCOUNT_FILES, JOURNAL, Changes, Restoration, change_files, change_units, journal
from bootstrap.steps.ssh import RELOAD_SSHD
from bootstrap.transport.host_login import HostLogin
from bootstrap.transport.ssh import SshTransport
from cluster.inventory import Node
from infra.home import Home
from infra.resources import ssh_key
from infra.resources.error import ResourceError
from infra.targets.hosts.adopt import HostFacts, adopt_host, read_claim, release_host
from infra.targets.hosts.claim import Claim, hash_key
from infra.targets.hosts.leftovers import find_leftovers, release_leftover
from infra.targets.hosts.receipts import describe_receipts
from infra.targets.hosts.state import identify_owner
from infra.targets.target import Deployment
from tests.e2e.bare_machines import BareMachines, differences, open_machines

HOST = "bare"
NETWORK, LOGINS = "muster-test-network", "systemd-user-sessions.service"
CLUSTER = f"adopt-{os.getpid():x}"
OPERATOR, CLUSTER_KEY = ssh_key.generate("operator"), ssh_key.generate("cluster")
CLAIM = Claim(
    cluster=CLUSTER,
    stack="mine",
    home="0123",
    home_path="/home/me/.muster",
    machine="9",
    key=hash_key(CLUSTER_KEY.public),
    node="cpu-1",
    id="first",
    created="2026-11-18T09:00:00+00:00",
)
OURS = "/root/muster-test-ours.deb"
INSTALL_OURS = f"{JOURNAL} installs {OURS}\ndpkg -i {OURS}"
# A package with a conffile that adds an account, and a second one that needs it.
BUILD_PACKAGES = """set -e
cd "$(mktemp -d)"
build() {
  mkdir -p "$1/DEBIAN" "$1/etc"
  cat >"$1/DEBIAN/control" <<END
Package: $1
Version: 1
Architecture: $(dpkg --print-architecture)
Multi-Arch: same
Maintainer: me <me@example.com>
Description: test
END
  if [ -n "$2" ]; then echo "Depends: $2" >>"$1/DEBIAN/control"; fi
  echo "$1" >"$1/etc/$1.conf"
  echo "/etc/$1.conf" >"$1/DEBIAN/conffiles"
  printf '#!/bin/sh\\nset -e\\nif [ "$1" = configure ]; then useradd -r -M %s; fi\\n' "$1-user" >"$1/DEBIAN/postinst"
  chmod 755 "$1/DEBIAN/postinst"
  dpkg-deb -b "$1" "/root/$1.deb" >/dev/null
}
build muster-test-ours ""
build muster-test-theirs muster-test-ours
"""


@dataclass(frozen=True)
class Machine:
    """A machine, and how the operator logs in to it."""

    machines: BareMachines
    login: HostLogin

    def run(self, script: str) -> str:
        return self.machines.run(HOST, script)

    def change(self, script: str, changes: Changes) -> None:
        """Run a script as an action of bootstrap does."""
        self.run(f"set -e\n{journal(script, changes)}")

    def snapshot(self) -> dict[str, str]:
        return self.machines.snapshot(HOST)

    def adopt(self, claim: Claim = CLAIM) -> HostFacts:
        return adopt_host(self.login, claim, CLUSTER_KEY.public)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    identity = Path(tmp_path_factory.mktemp("adopt") / "id")
    identity.write_text(OPERATOR.private)
    with open_machines(CLUSTER, [HOST], OPERATOR.public, {}) as machines:
        described = machines.described[HOST]
        login = HostLogin(
            HOST,
            described["address"],
            user="ops",
            identity_file=str(identity),
            fingerprint=described["fingerprint"],
        )
        machines.run(HOST, BUILD_PACKAGES)
        yield Machine(machines, login)


def test_an_adopted_machine_belongs_to_one_cluster_and_admits_its_key(machine: Machine) -> None:
    before = machine.snapshot()
    facts = machine.adopt()
    assert (facts.claim, facts.hostname, facts.address) == (CLAIM, HOST, machine.login.address)
    assert machine.adopt(replace(CLAIM, id="second")).claim == CLAIM
    with pytest.raises(ResourceError, match=f"belongs to cluster {CLUSTER} "):
        machine.adopt(replace(CLAIM, stack="theirs"))
    node = Node(
        name="cpu-1", role="compute", address=facts.address, host_key=facts.host_key, machine_id="first", cpus=1,
        memory_mb=1,
    )  # fmt: skip
    transport = SshTransport.connect(node, CLUSTER_KEY.private, deadline_s=60)
    assert transport.run("id -un").out == "root\n"
    transport.close()

    assert release_host(machine.login, "another") == ()
    assert read_claim(machine.login) == CLAIM
    restored = release_host(machine.login, "first")
    assert Restoration("restored", "unit", "ssh", "active") in restored
    assert {entry.outcome for entry in restored} == {"restored", "removed"}
    assert differences(before, machine.snapshot()) == {}
    assert read_claim(machine.login) is None
    assert release_host(machine.login) == ()


def test_who_connects_after_a_reload_of_sshd_is_not_refused(machine: Machine) -> None:
    connect = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/22'"
    machine.run(f"set -e; for _ in $(seq 40); do {RELOAD_SSHD}\n{connect}; sleep 0.05; done")


def test_of_two_operators_only_one_gets_a_machine(machine: Machine) -> None:
    claims = [replace(CLAIM, stack=f"stack-{number}", id=str(number)) for number in range(4)]

    def try_to_adopt(claim: Claim) -> bool:
        try:
            return machine.adopt(claim).claim == claim
        except ResourceError:
            return False

    with ThreadPoolExecutor(len(claims)) as pool:
        assert sorted(pool.map(try_to_adopt, claims)) == [False, False, False, True]
    release_host(machine.login)


@pytest.mark.fault(9)
def test_a_full_disk_is_named_and_adopting_works_afterwards(machine: Machine) -> None:
    machine.run("mkdir -p /var/lib/muster && mount -t tmpfs -o size=8k full /var/lib/muster")
    try:
        with pytest.raises(ResourceError, match="No space left on device") as caught:
            machine.adopt()
    finally:
        machine.run("umount /var/lib/muster")
    assert str(caught.value).startswith(f"hosts.machines.{HOST}")
    assert machine.adopt().claim == CLAIM
    release_host(machine.login)


def test_packages_accounts_and_units_are_as_before(machine: Machine) -> None:
    before = machine.snapshot()
    machine.adopt()
    installs = Changes(packages=True)
    machine.change(INSTALL_OURS, installs)
    # Afterwards it is changed, as bootstrap writes the settings of a daemon that it has installed.
    machine.change("echo ours >/etc/muster-test-ours.conf", change_files("/etc/muster-test-ours.conf"))
    machine.change("useradd -M alice", Changes(accounts=("alice",)))
    unit = "printf '[Service]\\nExecStart=sleep infinity\\n' >/etc/systemd/system/muster-test.service"
    machine.change(unit, change_files("/etc/systemd/system/muster-test.service"))
    machine.change("systemctl start muster-test", change_units("muster-test"))
    restored = release_host(machine.login)
    assert differences(before, machine.snapshot()) == {}
    assert Restoration("stopped", "unit", "muster-test") in restored
    assert Restoration("removed", "packages", "muster-test-ours") in restored
    assert [entry for entry in restored if entry.outcome == "left"] == []


def test_what_others_have_done_since_stays(machine: Machine) -> None:
    machine.adopt()
    machine.change(INSTALL_OURS, Changes(packages=True))
    machine.change("useradd -M alice", Changes(accounts=("alice",)))
    machine.run("dpkg -i /root/muster-test-theirs.deb")
    left = {
        (entry.kind, entry.subject): entry.remark for entry in release_host(machine.login) if entry.outcome == "left"
    }
    assert left.pop(("packages", "muster-test-ours")) == "needed by muster-test-theirs"
    # The other package has added its account, so the files of accounts are edited, not replaced.
    assert {subject for _kind, subject in left} <= set(ACCOUNT_FILES)
    assert "alice" not in machine.run("cut -d: -f1 /etc/passwd").split()
    assert "muster-test-theirs-user" in machine.run("cut -d: -f1 /etc/passwd").split()
    machine.run("dpkg -P muster-test-theirs muster-test-ours; rm -rf /var/backups/muster")


def test_users_can_log_in_if_a_unit_that_logins_require_was_running(machine: Machine) -> None:
    machine.run(f"systemctl start {LOGINS}")
    before = machine.snapshot()
    machine.adopt()
    unit, drop_in = f"/etc/systemd/system/{NETWORK}.service", f"/etc/systemd/system/{LOGINS}.d/{NETWORK}.conf"
    text = "[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nExecStart=true\\n"
    requires = f"mkdir -p {drop_in.rpartition('/')[0]}; printf '[Unit]\\nRequires={NETWORK}.service\\n' >{drop_in}"
    machine.change(f"printf '{text}' >{unit}; {requires}", change_files(unit, drop_in))
    machine.run(f"systemctl daemon-reload; systemctl start {NETWORK} {LOGINS}")
    release_host(machine.login)
    # Nothing requires the unit any more, so that ending it has no effect on logins.
    machine.run(f"systemctl stop {NETWORK}")
    assert machine.run(f"systemctl is-active {LOGINS}; test ! -e /run/nologin") == "active\n"
    assert differences(before, machine.snapshot()) == {}


def test_a_host_is_recognized_by_its_claim_if_the_state_is_lost(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("MUSTER_STACKS", str(tmp_path))
    described = machine.machines.described[HOST]
    spec = {
        "name": CLUSTER,
        "target": "hosts",
        "groups": {"cpu": {"count": 1}},
        "login": {"enabled": False},
        "storage": {"shared": {"kind": "existing"}},
        "hosts": {
            "machines": {HOST: described, "down": described | {"port": 1}},
            "controller": HOST,
            "groups": {"cpu": {"match": ["down"]}},
            "user": "ops",
            "identity_file": machine.login.identity_file,
        },
    }
    (tmp_path / "Pulumi.mine.yaml").write_text(yaml.safe_dump({"config": {"muster:cluster": spec}}))
    home = Home.of(os.environ)
    # Without the state, the cluster's key is not known.
    machine.adopt(replace(CLAIM, **asdict(identify_owner(CLUSTER, home.stack("mine")))))
    search = find_leftovers(Deployment(CLUSTER, "mine"))
    assert [leftover.name for leftover in search.resources] == [HOST]
    assert search.unseen == (f"host down: SSH at {described['address']}:1: connection refused",)
    release_leftover(search.resources[0])
    assert read_claim(machine.login) is None
    assert find_leftovers(Deployment(CLUSTER, "mine")).resources == []
    assert describe_receipts(home, "mine", HOST)[0].startswith(f"{HOST}: ")
