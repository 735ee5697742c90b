"""The topology of switches on a real Slurm: a running cluster learns of it, and jobs then stay under one leaf switch.

The containers run Slurm's daemons without systemd, with the configuration that `up` would write.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from docker.models.containers import Container

from cluster import names
from cluster.inventory import Inventory, Node
from cluster.spec import ClusterSpec
from slurm.config.render import render_files
from tests.container_script import BASH, run_script
from tests.e2e.daemon_container import daemon_network, start_container
from tests.harness import wait_until

pytestmark = pytest.mark.nightly

CLUSTER = f"switches-{os.getpid():x}"
LEAVES = {"leaf1": ("gpu-1", "gpu-3"), "leaf2": ("gpu-2", "gpu-4")}
"""Not in the order of the names, in which Slurm fills nodes without a topology."""
PLACES = {name: (leaf,) for leaf, members in LEAVES.items() for name in members}
EXTRA = {
    "AccountingStorageType": "accounting_storage/none",
    "AccountingStorageEnforce": "nojobs",
    # There are no users here, and no steps of bootstrap have run.
    "DisableRootJobs": "NO",
    "HealthCheckInterval": "0",
    **dict.fromkeys(("TaskProlog", "Epilog"), "/bin/true"),
}
_WAIT_FOR_CONTROLLER = "until (exec 3<>/dev/tcp/controller/6817) 2>/dev/null; do sleep 0.2; done; "


class Rack:
    """A controller and four compute nodes, whose switches Slurm does not know at first."""

    def __init__(self, release: str, folder: Path) -> None:
        self.image, self.folder, self.release = names.image(release), folder, release
        (folder / "etc/slurm").mkdir(parents=True)
        (folder / "etc/slurm/slurm.key").write_bytes(bytes(range(1, 33)))
        self._write({})
        # slurmctld resolves the names of all nodes when it starts, and slurmd asks it for the configuration.
        for name in sorted(PLACES):
            self._start(name, f"slurmd -D -N {name} --conf-server controller:6817", _WAIT_FOR_CONTROLLER)
        self.controller = self._start("controller", "slurmctld -D")
        wait_until(lambda: "UP" in self.run("scontrol ping", check=False), "slurmctld answers")
        wait_until(lambda: self.run("sinfo -h -o %D:%t") == "4:idle", "all nodes are idle")

    def run(self, script: str, *, check: bool = True) -> str:
        done = run_script(self.controller, script, shell=BASH)
        if check and done.code:
            raise AssertionError(f"{script}\nexited {done.code}\n{done.out}\n{self.controller.logs(tail=40).decode()}")
        return done.out.strip()

    def submit(self, *options: str) -> str:
        """Submit a job that sleeps, and return its id."""
        return self.run(f"cd /tmp && sbatch --parsable -o /dev/null {' '.join(options)} --wrap 'sleep 600'")

    def wait_until_placed(self, job: str) -> str:
        """Return the nodes of a job that runs, as soon as it does."""
        listed = f"squeue -h -j {job} -t RUNNING -o %N"
        wait_until(lambda: bool(self.run(listed)), f"job {job} runs")
        return self.run(listed)

    def cancel_all(self) -> None:
        """End all jobs, and wait until all nodes are idle."""
        self.run("scancel -u root")
        wait_until(lambda: self.run("sinfo -h -o %D:%t") == "4:idle", "all nodes are idle")

    def learn_switches(self) -> None:
        """Change the configuration of the running cluster, as `up` does after the switches were described."""
        self._write(PLACES)
        self.run("cp /muster/etc/slurm/*.conf /etc/slurm/ && scontrol reconfigure")

    def _start(self, name: str, daemon: str, wait: str = "") -> Container:
        prepare = (
            "cp -r /muster/. / && chown -R slurm:slurm /etc/slurm && chmod 600 /etc/slurm/slurm.key"
            " && mkdir -p /var/log/slurm /run/slurm /var/lib/slurm/slurmctld"
            " && chown -R slurm:slurm /var/log/slurm /var/lib/slurm"
        )
        # slurmd 26.05 requires that root owns the folder; slurmctld runs as another user.
        own = " && chown slurm:slurm /run/slurm" if name == "controller" else " && rm -f /etc/slurm/*.conf"
        script = f"{prepare}{own} && {wait}exec {daemon}"
        return start_container(CLUSTER, name, script, {self.folder: "/muster"}, self.image)

    def _write(self, places: dict[str, tuple[str, ...]]) -> None:
        machine = {"host_key": "", "machine_id": "", "cpus": 1, "memory_mb": 512}
        nodes = [
            Node.model_validate({"name": "controller", "role": "controller", "address": "controller", **machine}),
            *(
                Node.model_validate(
                    {"name": name, "role": "compute", "group": "gpu", "address": name, "place": places.get(name, ())}
                    | machine
                )
                for name in sorted(PLACES)
            ),
        ]
        inventory = Inventory(cluster="demo", target="hosts", nodes=tuple(nodes))
        spec = ClusterSpec.model_validate(
            {
                "name": "demo",
                "target": "hosts",
                "groups": {"gpu": {"count": len(PLACES)}},
                "software": {"slurm": self.release},
                "slurm": {"extra": EXTRA},
            }
        )
        for path, file in render_files(inventory, spec, cgroup="none", db_password="none").items():
            (self.folder / path.lstrip("/")).write_text(file.content)


@pytest.fixture(scope="module", params=["26.05", "24.11"])
def rack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    assert docker.from_env().images.list(names.image(request.param)), "run `make setup` first"
    with daemon_network(CLUSTER):
        yield Rack(request.param, tmp_path_factory.mktemp("switches"))


def test_a_running_cluster_learns_of_its_switches_and_jobs_stay_under_one(rack: Rack) -> None:
    # Without a topology, the first nodes are taken, although they are under different switches.
    crossing = rack.submit("-N 2")
    assert rack.wait_until_placed(crossing) == "gpu-[1-2]"

    rack.learn_switches()
    shown = "scontrol show topology"
    wait_until(lambda: "SwitchName=leaf2" in rack.run(shown, check=False), "Slurm knows the switches")
    described = [dict(word.split("=", 1) for word in line.split()) for line in rack.run(shown).splitlines()]
    assert {fields["SwitchName"]: (fields["Level"], fields["Nodes"]) for fields in described} == {
        "leaf1": ("0", "gpu-[1,3]"),
        "leaf2": ("0", "gpu-[2,4]"),
        "all": ("1", "gpu-[1-4]"),
    }
    # The job that ran meanwhile goes on where it was.
    assert rack.run(f"squeue -h -j {crossing} -o '%T %N'") == "RUNNING gpu-[1-2]"

    rack.cancel_all()
    placed = [rack.wait_until_placed(rack.submit("-N 2")) for _ in LEAVES]
    assert sorted(placed) == ["gpu-[1,3]", "gpu-[2,4]"]
    rack.cancel_all()

    # One node of each leaf is taken: a job that fits under no single switch starts across both.
    for name in ("gpu-1", "gpu-2"):
        rack.wait_until_placed(rack.submit("-N 1", "-w", name))
    assert rack.wait_until_placed(rack.submit("-N 2")) == "gpu-[3-4]"
