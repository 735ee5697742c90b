"""The Slurm files of six clusters against their golden copies, and the rules that they follow.

`make golden` rewrites the copies; review their diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.inventory import Inventory, Node, NodeGpus, NodeSet
from cluster.spec import ClusterSpec
from slurm.config.render import Cgroup, render_files
from slurm.config.topology import check_topology
from slurm.hostlist import expand, hostlist

GOLDEN = Path(__file__).parents[1] / "golden" / "slurm"


def node(name: str, role: str, last: int, memory_mb: int = 2048, **more: object) -> Node:
    fields = {"cpus": 2, "host_key": f"ssh-ed25519 {name}", "machine_id": name, "memory_mb": memory_mb} | more
    return Node.model_validate({"name": name, "role": role, "address": f"10.88.1.{last}", **fields})


def simulated(count: int) -> NodeGpus:
    return NodeGpus(count=count, devices=tuple(f"/dev/fakegpu{i}" for i in range(count)))


LOCAL = Inventory(
    cluster="demo",
    target="local",
    single_host=True,
    nodes=(
        node("controller", "controller", 2),
        node("login", "login", 3),
        node("gpu-1", "compute", 4, group="gpu", gpus=simulated(2)),
        node("gpu-2", "compute", 5, group="gpu", gpus=simulated(2)),
    ),
)
CLOUD = Inventory(
    cluster="train",
    target="aws",
    nodes=(
        node("controller", "controller", 2),
        node("login", "login", 3),
        *(
            node(
                f"p5-{i}",
                "compute",
                10 + i,
                2_097_152,
                group="p5",
                cpus=192,
                fabric="efa",
                gpus=NodeGpus(count=8, kind="real", devices=tuple(f"/dev/nvidia{n}" for n in range(8))),
            )
            for i in (1, 2, 4)
        ),
        node("cpu-1", "compute", 20, 65536, group="cpu", cpus=16),
    ),
)
SMALL = Inventory(
    cluster="tiny",
    target="local",
    single_host=True,
    nodes=(node("controller", "controller", 2), node("cpu-1", "compute", 3, 1024, group="cpu", cpus=1)),
)
L4 = NodeGpus(count=1, kind="real", type="l4")
LAUNCHED = Inventory(
    cluster="burst",
    target="aws",
    nodes=(node("controller", "controller", 2), node("login", "login", 3)),
    sets=(
        NodeSet(
            group="h100",
            count=64,
            static=2,
            cpus=192,
            cores=96,
            sockets=2,
            memory_mb=2_097_152,
            fabric="efa",
            gpus=NodeGpus(count=8, kind="real", devices=tuple(f"/dev/nvidia{n}" for n in range(8))),
            instance_type="p5.48xlarge",
        ),
        NodeSet(
            group="l4", count=8, static=0, cpus=32, memory_mb=131_072, gpus=NodeGpus(count=1, kind="real", type="l4")
        ),
        NodeSet(group="spare", count=0, static=0, cpus=4, memory_mb=16_384),
    ),
)

GB200 = NodeGpus(count=4, kind="real", type="gb200", devices=tuple(f"/dev/nvidia{n}" for n in range(4)))
ULTRASERVERS = Inventory(
    cluster="rack",
    target="aws",
    nodes=(node("controller", "controller", 2),),
    sets=(
        *(
            NodeSet(
                group=group,
                count=count,
                static=count,
                cpus=144,
                memory_mb=983_040,
                gpus=GB200,
                fabric="efa",
                instance_type="p6e-gb200.36xlarge",
                ultraserver=True,
            )
            for group, count in (("gb-a", 18), ("gb-b", 9))
        ),
        NodeSet(group="cpu", count=4, static=0, cpus=16, memory_mb=65_536),
    ),
)

# Two pods of two leaf switches, a host that nothing is known of, and hosts without the fast fabric.
LINKED = Inventory(
    cluster="racks",
    target="hosts",
    nodes=(
        node("controller", "controller", 2),
        *(
            node(
                f"gpu-{number}",
                "compute",
                10 + number,
                2_097_152,
                group="gpu",
                cpus=192,
                fabric="infiniband",
                place=place,
                gpus=NodeGpus(count=8, kind="real", devices=tuple(f"/dev/nvidia{n}" for n in range(8))),
            )
            for number, place in enumerate(
                [*[("pod1", "leaf1")] * 2, *[("pod1", "leaf2")] * 2, *[("pod2", "leaf3")] * 2, ("pod2", "leaf4"), ()], 1
            )
        ),
        *(node(f"cpu-{number}", "compute", 30 + number, 65_536, group="cpu", cpus=16) for number in (1, 2)),
    ),
)

CASES: dict[str, tuple[Inventory, dict[str, object], Cgroup]] = {
    "local-gpu": (LOCAL, {"groups": {"gpu": {"count": 2, "gpus": {"count": 2}}}}, "v1"),
    "cloud": (
        CLOUD,
        {
            "groups": {"p5": {"count": 3}, "cpu": {"count": 1}, "spare": {"count": 0}},
            "slurm": {
                "default_group": "p5",
                "max_time": "2-00:00:00",
                "slurmd_timeout_s": 300,
                "extra": {"TreeWidth": "128", "PriorityType": "priority/multifactor"},
            },
        },
        "v2",
    ),
    "launched": (
        LAUNCHED,
        {
            "groups": {"h100": {"min": 2, "max": 64}, "l4": {"min": 0, "max": 8}, "spare": {"min": 0, "max": 1}},
            "slurm": {
                "suspend_s": 300,
                "resume_s": 1200,
                "default_group": "all",
                "partitions": {
                    "urgent": {"groups": ["h100"], "priority": 100, "max_nodes": 4, "accounts": ["ops", "research"]},
                    "all": {"groups": ["h100", "l4"], "default_time": "0:10:00", "max_time": "0:30:00"},
                },
            },
        },
        "v2",
    ),
    "ultraserver": (
        ULTRASERVERS,
        {
            "groups": {"gb-a": {"count": 18}, "gb-b": {"count": 9}, "cpu": {"min": 0, "max": 4}},
            "login": {"enabled": False},
            "slurm": {"partitions": {"gb": {"groups": ["gb-a", "gb-b"]}}},
        },
        "v2",
    ),
    "linked": (
        LINKED,
        {"groups": {"gpu": {"count": 8}, "cpu": {"count": 2}}, "login": {"enabled": False}},
        "v2",
    ),
    "no-cgroup": (SMALL, {"groups": {"cpu": {"count": 1}}, "login": {"enabled": False}}, "none"),
}


def render_case(case: str) -> dict[str, str]:
    inventory, more, cgroup = CASES[case]
    spec = ClusterSpec.model_validate({"name": inventory.cluster, "target": inventory.target, **more})
    files = render_files(inventory, spec, cgroup=cgroup, db_password="golden-password")
    return {path.rpartition("/")[2]: file.content for path, file in files.items()}


@pytest.mark.parametrize("case", CASES)
def test_golden_copies(case: str) -> None:
    golden = {path.name: path.read_text() for path in (GOLDEN / case).iterdir()}
    assert render_case(case) == golden


def test_a_node_is_down_after_30_s_on_one_machine_and_after_300_s_across_a_network() -> None:
    def render(inventory: Inventory, **options: object) -> str:
        spec = ClusterSpec.model_validate(
            {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}, "slurm": options}
        )
        conf = render_files(inventory, spec, cgroup="v2", db_password="none")["/etc/slurm/slurm.conf"].content
        return next(line for line in conf.splitlines() if line.startswith("SlurmdTimeout="))

    assert render(LOCAL) == "SlurmdTimeout=30"
    assert render(LAUNCHED) == "SlurmdTimeout=300"
    assert render(LOCAL, slurmd_timeout_s=60) == render(LAUNCHED, slurmd_timeout_s=60) == "SlurmdTimeout=60"


def test_only_slurm_can_read_the_file_with_the_database_password() -> None:
    spec = ClusterSpec.model_validate({"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}})
    files = render_files(LOCAL, spec, cgroup="v1", db_password="secret-word")
    holders = {path: (file.mode, file.owner) for path, file in files.items() if "secret-word" in file.content}
    assert holders == {"/etc/slurm/slurmdbd.conf": (0o600, "slurm:slurm")}


def test_each_key_of_slurm_conf_is_set_once() -> None:
    for case in CASES:
        keys = [line.partition("=")[0].lower() for line in render_case(case)["slurm.conf"].splitlines() if "=" in line]
        once = [key for key in keys if key not in ("nodename", "partitionname") and not key.startswith("#")]
        assert len(once) == len(set(once))


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([], ""),
        (["gpu-1"], "gpu-1"),
        (["gpu-1", "gpu-2", "gpu-3"], "gpu-[1-3]"),
        (["gpu-2", "gpu-1", "gpu-4", "gpu-10"], "gpu-[1-2,4,10]"),
        (["a-1", "b-1", "a-2"], "a-[1-2],b-1"),
        (["/dev/nvidia0", "/dev/nvidia1"], "/dev/nvidia[0-1]"),
        (["login"], "login"),
        (["n01", "n02"], "n0[1-2]"),
    ],
)
def test_hostlists_are_compressed(names: list[str], short: str) -> None:
    assert hostlist(names) == short


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("", ()),
        ("login", ("login",)),
        ("gpu-[1-3,7],cpu-1", ("gpu-1", "gpu-2", "gpu-3", "gpu-7", "cpu-1")),
        ("n[008-010]", ("n008", "n009", "n010")),
    ],
)
def test_hostlists_are_expanded(short: str, names: tuple[str, ...]) -> None:
    assert expand(short) == names


@pytest.mark.parametrize("case", ["launched", "linked"])
def test_the_first_topology_has_every_node_of_slurm_conf(case: str) -> None:
    files = render_case(case)
    named = [line.split()[0].partition("=")[2] for line in files["slurm.conf"].splitlines() if line[:9] == "NodeName="]
    assert check_topology(files["topology.conf"], [name for short in named for name in expand(short)]) == []


def test_slurm_conf_enables_the_topology_plugin_only_with_a_topology() -> None:
    for case in CASES:
        assert ("TopologyPlugin" in render_case(case)["slurm.conf"]) == ("topology.conf" in render_case(case))


def test_newer_releases_have_their_own_settings() -> None:
    def conf(release: str) -> str:
        spec = ClusterSpec.model_validate(
            {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}, "software": {"slurm": release}}
        )
        return render_files(LOCAL, spec, cgroup="v2", db_password="x")["/etc/slurm/slurm.conf"].content

    # A daemon of 24.11 ends if it finds a key that it does not know.
    assert set(conf("26.05").splitlines()) - set(conf("24.11").splitlines()) == {
        "# Since 26.05 slurmctld also answers HTTP requests on its port, without authentication.",
        "CommunicationParameters=disable_http",
        "HealthCheckTimeout=50",
        "NamespaceType=namespace/tmpfs",
    }
    assert "JobContainerType=job_container/tmpfs" in conf("24.11").splitlines()


@pytest.mark.parametrize("key", ["PrivateData", "privatedata"])
def test_slurmctld_and_slurmdbd_hide_the_same_data(key: str) -> None:
    def hidden(extra: dict[str, str]) -> set[str]:
        spec = ClusterSpec.model_validate(
            {"name": "demo", "target": "local", "groups": {"gpu": {"count": 2}}, "slurm": {"extra": extra}}
        )
        files = render_files(LOCAL, spec, cgroup="v2", db_password="x")
        texts = [files[f"/etc/slurm/{name}.conf"].content for name in ("slurm", "slurmdbd")]
        lines = [line for text in texts for line in text.splitlines() if line.lower().startswith("privatedata=")]
        assert len(lines) == len(texts)
        return {line.partition("=")[2] for line in lines}

    assert hidden({}) == {"accounts,jobs,usage,users"}
    assert hidden({key: "none"}) == {"none"}


if __name__ == "__main__":
    for name in CASES:
        (GOLDEN / name).mkdir(parents=True, exist_ok=True)
        for file_name, content in render_case(name).items():
            (GOLDEN / name / file_name).write_text(content)
