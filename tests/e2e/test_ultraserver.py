"""UltraServers on a real Slurm: jobs stay in one block, and the prolog starts IMEX on the nodes of each job.

The containers run Slurm's daemons without systemd; systemctl and nvidia-imex-ctl are stubs, and the service listens on
no port, because IMEX needs NVLink between machines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from bootstrap.program import pack_program
from bootstrap.steps.health import SOURCES, START, render_exec_line
from bootstrap.steps.isolation import render_epilog
from cluster import names
from cluster.inventory import Inventory, Node, NodeGpus, NodeSet
from cluster.spec import ClusterSpec
from slurm.config.render import render_files
from tests.container_script import BASH, run_script
from tests.e2e.daemon_container import daemon_network, start_container
from tests.harness import REPO, wait_until

pytestmark = pytest.mark.nightly

CLUSTER = f"ultra-{os.getpid():x}"
SIZES = {"gb-a": 4, "gb-b": 3}
"""Nodes of each UltraServer. BlockSizes is 3, the size of the smallest."""
EXTRA = {
    "AccountingStorageType": "accounting_storage/none",
    "AccountingStorageEnforce": "nojobs",
    # There are no users here.
    "DisableRootJobs": "NO",
    "TaskProlog": "/bin/true",
    **dict.fromkeys(("ResumeProgram", "SuspendProgram", "ResumeFailProgram", "PrologSlurmctld"), "/bin/true"),
    "HealthCheckInterval": "0",
}
# The state of the service is a file; `nvidia-imex-ctl` reports all addresses of the configuration as connected.
SYSTEMCTL = """#!/bin/sh
echo "$1" >>/var/log/imex-calls
case "$1" in
start) [ ! -e /broken ] || { echo 'Job for nvidia-imex.service failed.' >&2; exit 1; }; touch /run/imex-up ;;
stop) rm -f /run/imex-up ;;
esac
"""
CONTROL = """#!/bin/sh
[ -e /run/imex-up ] || exit 1
cd /etc/nvidia-imex
awk '{ printf "Node #%d   - %-15s - READY                - Version: 595.91\\n", NR - 1, $1 }' nodes_config.cfg
echo 'Domain State: UP'
"""


class UltraServers:
    """A controller and containers for some of its nodes."""

    def __init__(self, release: str, folder: Path) -> None:
        self.image, self.folder = names.image(release), folder
        self.nodes: dict[str, Container] = {}
        _write_files(folder, release)
        self.controller = self._start("controller", "slurmctld -D")
        wait_until(lambda: "UP" in self.run("scontrol ping", check=False), "slurmctld answers")

    def run(self, script: str, *, node: str = "", check: bool = True) -> str:
        container = self.nodes[node] if node else self.controller
        done = run_script(container, script, shell=BASH)
        if check and done.code:
            log = self.controller.logs(tail=40).decode()
            raise AssertionError(f"{script}\nexited {done.code}\n{done.out}\n{log}")
        return done.out.strip()

    def submit(self, *options: str, seconds: int = 600) -> str:
        """Submit a job that sleeps, and return its id."""
        return self.run(f"cd /tmp && sbatch --parsable -o /dev/null {' '.join(options)} --wrap 'sleep {seconds}'")

    def placed(self, job: str) -> str:
        """Return the nodes of a job once it has some."""
        listed = f"squeue -h -j {job} -o %N"
        wait_until(lambda: bool(self.run(listed)), f"job {job} has nodes")
        return self.run(listed)

    def cancel_all(self) -> None:
        """End all jobs."""
        self.run("scancel -u root")
        wait_until(lambda: not self.run("squeue -h"), "no job is left")

    def boot(self, name: str) -> None:
        self.nodes[name] = self._start(name, f"slurmd -D -b -N {name} --conf-server controller:6817")

    def state(self, node: str) -> str:
        return self.run(f"sinfo -h -N -n {node} -p {names.group_of(node)} -o '%T|%E'")

    def wait_until_idle(self, node: str) -> None:
        wait_until(lambda: self.state(node).startswith("idle|"), f"{node} is idle")

    def _start(self, name: str, daemon: str) -> Container:
        prepare = (
            "cp -r /muster/. / && chown -R slurm:slurm /etc/slurm && chmod 600 /etc/slurm/slurm.key"
            " && mkdir -p /var/log/slurm /run/slurm /var/lib/slurm/slurmctld"
            " && chown -R slurm:slurm /var/log/slurm /var/lib/slurm"
        )
        # The kernel here has no IMEX channels.
        prepare += " && mkdir -p /dev/nvidia-caps-imex-channels && touch /dev/nvidia-caps-imex-channels/channel0"
        # slurmd 26.05 requires that root owns the folder; slurmctld runs as another user.
        own = " && chown slurm:slurm /run/slurm" if name == "controller" else " && rm -f /etc/slurm/*.conf"
        script = f"{prepare}{own} && exec {daemon}"
        return start_container(CLUSTER, name, script, {self.folder: "/muster"}, self.image)


@pytest.fixture(scope="module", params=["26.05", "24.11"])
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UltraServers]:
    image = names.image(request.param)
    assert docker.from_env().images.list(image), "run `make setup` first"
    with daemon_network(CLUSTER):
        yield UltraServers(request.param, tmp_path_factory.mktemp("ultraserver"))


def test_slurm_shows_a_block_for_each_ultraserver(slurm: UltraServers) -> None:
    assert slurm.run("scontrol show topology").splitlines() == [
        "BlockName=gb-a BlockIndex=0 Nodes=gb-a-[1-4] BlockSize=3",
        "BlockName=gb-b BlockIndex=1 Nodes=gb-b-[1-3] BlockSize=3",
    ]


def test_jobs_stay_in_one_block_and_share_no_node(slurm: UltraServers) -> None:
    # One core of one node: the job still gets the whole node, whose IMEX service is its own.
    small = slurm.placed(slurm.submit("-p gb -n 1"))
    three = slurm.placed(slurm.submit("-p gb -N 3"))
    assert names.group_of(small) != names.group_of(three.replace("[1-3]", "1"))
    assert small not in three
    # Nodes outside the blocks are scheduled as usual.
    assert slurm.placed(slurm.submit("-p cpu -N 2")) == "cpu-[1-2]"
    slurm.cancel_all()
    # Both blocks can hold a segment of three nodes, so six nodes are three of each.
    assert slurm.placed(slurm.submit("-p gb -N 6 --segment=3")) in ("gb-a-[1-3],gb-b-[1-3]", "gb-a-[2-4],gb-b-[1-3]")
    slurm.cancel_all()


def test_the_prolog_starts_imex_for_the_job_and_a_failure_says_why(slurm: UltraServers) -> None:
    for name in ("gb-b-1", "gb-b-2"):
        slurm.boot(name)
    for name in ("gb-b-1", "gb-b-2"):
        slurm.wait_until_idle(name)
    job = slurm.submit("-w gb-b-[1-2] -p gb -N 2")
    # While the prolog runs, the state is RUNNING too, and the reason is Prolog.
    wait_until(lambda: slurm.run(f"squeue -h -j {job} -o '%T %r'") == "RUNNING None", "the job runs")
    addresses = [slurm.run("hostname -i", node=name) for name in ("gb-b-1", "gb-b-2")]
    for name in ("gb-b-1", "gb-b-2"):
        assert slurm.run("cat /etc/nvidia-imex/nodes_config.cfg", node=name).split() == addresses
        slurm.run("test -e /run/imex-up", node=name)
    slurm.cancel_all()
    for name in ("gb-b-1", "gb-b-2"):
        slurm.wait_until_idle(name)
        slurm.run("test ! -e /run/imex-up", node=name)
    slurm.run("touch /broken", node="gb-b-2")
    slurm.submit("-w gb-b-[1-2] -p gb -N 2")
    reason = "health: imex: nvidia-imex did not start: Job for nvidia-imex.service failed."
    wait_until(lambda: slurm.state("gb-b-2") == f"drained|{reason}", "the broken node is drained")
    # The other node is in service; the job was requeued and waits.
    wait_until(lambda: slurm.state("gb-b-1").startswith(("idle|", "mixed|")), "the other node is in service")
    assert slurm.run("squeue -h -o %T") == "PENDING"


def test_the_prolog_creates_a_channel_for_the_user_of_the_job_only(slurm: UltraServers) -> None:
    """The kernel here has no IMEX channels, so that the program reads another /proc/devices."""
    slurm.run("mkdir -p /tmp/root/proc && echo '234 nvidia-caps-imex-channels' >/tmp/root/proc/devices")
    channel = "/tmp/root/dev/nvidia-caps-imex-channels/channel0"
    show = f"stat -c '%F %t %a %u' {channel}"

    def call(function: str) -> None:
        slurm.run(
            'python3 -c \'import sys; sys.path.insert(0, "/etc/muster/health.pyz"); from pathlib import Path; '
            f'from slurm.health import imex_domain; imex_domain.ROOT = Path("/tmp/root"); imex_domain.{function}\''
        )

    call("_open_channel(1234)")
    assert slurm.run(show) == "character special file ea 600 1234"
    call("end_domain()")
    assert slurm.run(show) == "character special file ea 600 0"
    # The driver may have created the channel before.
    slurm.run(f"chmod 666 {channel}")
    call("_open_channel(1234)")
    assert slurm.run(show) == "character special file ea 600 1234"


def _write_files(folder: Path, release: str) -> None:
    gpus = NodeGpus(count=0, kind="real")
    sets = (
        *(
            NodeSet(group=name, count=count, static=0, cpus=2, memory_mb=512, gpus=gpus, fabric="efa", ultraserver=True)
            for name, count in SIZES.items()
        ),
        NodeSet(group="cpu", count=3, static=0, cpus=2, memory_mb=512),
    )
    controller = Node(
        name="controller", role="controller", address="controller", host_key="", machine_id="", cpus=1, memory_mb=1024
    )
    inventory = Inventory(cluster="demo", target="aws", nodes=(controller,), sets=sets)
    spec = ClusterSpec.model_validate(
        {
            "name": "demo",
            "target": "aws",
            "groups": {nodes.group: {"min": 0, "max": nodes.count} for nodes in sets},
            "software": {"slurm": release},
            "slurm": {
                "suspend_s": 3600,
                "resume_s": 600,
                "partitions": {"gb": {"groups": list(SIZES)}},
                "extra": {**EXTRA, "Prolog": "/etc/muster/prolog"},
            },
        }
    )
    text = {
        path: file.content for path, file in render_files(inventory, spec, cgroup="none", db_password="none").items()
    }
    members = ", ".join(f'"{name}"' for name in names.members("gb-b", SIZES["gb-b"]))
    text |= {
        "/etc/muster/expected.json": f'{{"ultraserver": [{members}], "disabled": ["disk", "clock"]}}',
        "/etc/muster/prolog": f"#!/bin/sh\n{render_exec_line('prolog')}",
        "/etc/muster/epilog": render_epilog(gpus=True),
        "/etc/nvidia-imex/config.cfg": "SERVER_PORT=50000\nIMEX_CMD_ENABLED=0\n",
        "/usr/bin/systemctl": SYSTEMCTL,
        "/usr/bin/nvidia-imex-ctl": CONTROL,
    }
    for path, content in text.items():
        target = folder / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
        target.chmod(0o755 if path.startswith(("/usr", "/etc/muster/prolog", "/etc/muster/epilog")) else 0o644)
    (folder / "etc/muster/health.pyz").write_bytes(pack_program(REPO, SOURCES, START))
    (folder / "etc/slurm/slurm.key").write_bytes(bytes(range(1, 33)))
