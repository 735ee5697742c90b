"""What reads a node's kernel, on virtual machines with a kernel of their own: soft-RoCE, and NFS whose server hangs.

No Slurm runs here: these are the parts that the fabric job and the health checks consist of.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator
from typing import Any

import pytest

from bootstrap.steps.nfs import OPTIONS
from setup.paths import Paths
from tests.harness import REPO
from tests.virtual_machines.machines import VirtualMachine, explain_lack, open_virtual_machines

pytestmark = pytest.mark.nightly

NAMES = ("first", "second")
PORT = "rxe0:1"
RATE = 2.5
CODE = "/mnt/repository"
# A device of its own, so that a port goes down without the machine.
PREPARE = f"""set -e
mkdir -p {CODE}
mount -t 9p -o trans=virtio,ro,version=9p2000.L,msize=1048576 share {CODE}
apt-get -q -y install perftest >/dev/null
ip link add fabric0 link eth0 type macvlan mode bridge
ip address add 10.178.0.{{number}}/24 dev fabric0
ip link set fabric0 up
rdma link add rxe0 type rxe netdev fabric0
echo '{{hosts}}' >>/etc/hosts
"""
# As the job does: the first node serves, the second one measures. An emulated processor moves 4 MB per second, so that
# often no message ends within the measured part of the job's three seconds: here a number of messages is timed.
LINK = """
from dataclasses import asdict
from slurm.fabric import measure, perftest
perftest._OPTIONS[perftest.BANDWIDTH] = ("--report_gbits", "-q", "4", "-s", "16384", "-n", "50")
from slurm.fabric.link_plan import plan_links
facts = measure.read_devices()
ports = measure.list_node_ports({"rxe0:1": 2.5}, facts)
planned = plan_links(("first", "second"), ports, ports)
"""
SERVE = f"{LINK}measure.serve_links(planned, facts, lambda: False)"
MEASURE = f"""{LINK}links = measure.measure_links(("first", "second"), planned, facts)
print(json.dumps([asdict(link) for link in links]))
"""
READ = """
from dataclasses import asdict
from slurm.fabric.measure import read_devices
from slurm.rdma.ports import build_environment, select_ports
facts = read_devices()
print(json.dumps([asdict(facts.ports[0]), build_environment(select_ports(facts, "roce"), "roce")]))
"""
FIND_PROBLEMS = """
from slurm.health.check import Expected, judge_answer
from slurm.health.registry import CHECKS, run_scripts
expected = Expected(**{expected})
check = next(each for each in CHECKS if each.name == "{check}")
(answer,) = run_scripts([(check.command(expected), check.limit_s)])
print(json.dumps([str(problem) for problem in judge_answer(check, answer, expected)]))
"""
SHARED = "/shared"
EXPORT = "/srv/shared"
# The limit of the check, and the time that an emulated processor takes to start it.
CHECK_S = 60.0


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[VirtualMachine]]:
    if lack := explain_lack(Paths.from_environment()):
        pytest.skip(lack)
    with open_virtual_machines(NAMES, tmp_path_factory.mktemp("vm") / "identity", REPO) as opened:
        hosts = "\n".join(f"{machine.address} {name}" for name, machine in opened.items())
        for number, machine in enumerate(opened.values(), 1):
            machine.run(PREPARE.format(number=number, hosts=hosts))
        yield list(opened.values())


def test_the_facts_of_a_port_are_read(machines: list[VirtualMachine]) -> None:
    port, environment = run_python(machines[0], READ)
    assert (port["device"], port["state"], port["phys_state"]) == ("rxe0", "ACTIVE", "LinkUp")
    assert (port["gbps"], port["link_layer"]) == (RATE, "Ethernet")
    assert environment == {"NCCL_NET": "IB", "NCCL_IB_HCA": f"={PORT}", "NCCL_IB_GID_INDEX": "1"}


def test_the_link_between_two_ports_is_measured_by_verbs(machines: list[VirtualMachine]) -> None:
    first, second = machines
    server = first.start(in_python(SERVE))
    (link,) = run_python(second, MEASURE)
    server.terminate()
    assert (link["nodes"], link["port"], link["rate"], link["error"]) == ([*NAMES], PORT, RATE, "")
    assert 0 < link["gbps"] < RATE
    assert link["us"] > 1


def test_a_port_that_goes_down_is_reported_with_its_state(machines: list[VirtualMachine]) -> None:
    machine = machines[1]
    expected = {"rdma": {PORT: RATE}}
    assert find_problems(machine, "rdma", expected) == []
    assert find_problems(machine, "rdma-errors", expected) == []
    machine.run("ip link set fabric0 down")
    (problem,) = find_problems(machine, "rdma", expected)
    assert problem.startswith(f"rdma: port {PORT} is DOWN"), problem
    machine.run("ip link set fabric0 up; ip link set fabric0 down; ip link set fabric0 up")
    assert find_problems(machine, "rdma", expected) == []
    assert find_problems(machine, "rdma-errors", expected) == [
        f"rdma-errors: the link of port {PORT} went down 2 times within an hour"
    ]


@pytest.mark.fault(8)
def test_an_nfs_server_that_hangs_is_named_and_writers_go_on_after_it(machines: list[VirtualMachine]) -> None:
    """The whole machine of the server stands still; the mount is that of bootstrap."""
    server, client = machines
    server.run(f"mkdir -p {EXPORT}; systemctl start nfs-server; exportfs -o rw,sync,no_root_squash '*:{EXPORT}'")
    client.run(f"mkdir -p {SHARED}; mount -t nfs4 -o {OPTIONS} {server.address}:{EXPORT} {SHARED}")
    expected = {"mounts": [SHARED]}
    assert find_problems(client, "mounts", expected) == []
    writer = client.start(f"for i in $(seq 20); do echo $i; sync {SHARED}/log; sleep 1; done >{SHARED}/log")
    server.pause()
    try:
        began = time.monotonic()
        problems = find_problems(client, "mounts", expected)
        took_s = time.monotonic() - began
    finally:
        server.resume()
    assert problems == [f"mounts: no answer within 30 s, {SHARED} from {server.address}:{EXPORT} (nfs4)"]
    assert took_s < CHECK_S
    assert writer.wait(300) == 0
    assert client.run(f"cat {SHARED}/log").split() == [str(number) for number in range(1, 21)]
    assert find_problems(client, "mounts", expected) == []


def find_problems(machine: VirtualMachine, check: str, expected: dict[str, Any]) -> list[str]:
    """Run a health check on a machine and return what it reports."""
    problems: list[str] = run_python(machine, FIND_PROBLEMS.format(check=check, expected=expected))
    return problems


def run_python(machine: VirtualMachine, program: str) -> Any:
    """Run a program that imports muster's code from this machine, and return the JSON that it prints."""
    return json.loads(machine.run(in_python(program)))


def in_python(program: str) -> str:
    return f"cd {CODE} && PYTHONDONTWRITEBYTECODE=1 python3 -c {shlex.quote(f'import json{program}')}"
