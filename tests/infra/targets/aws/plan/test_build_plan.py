"""The build plan on AWS: sizes from the catalog, compute nodes as sets, nodes affected by updates."""

from __future__ import annotations

from infra.targets.aws.plan.machines import build_plan as plan
from infra.targets.aws.plan.machines import with_default_types as resolved
from infra.validate.update import affected, changes
from tests.infra.targets.aws.specs import group, spec


def test_controller_and_login_are_nodes_and_groups_are_sets() -> None:
    built = plan(spec())
    assert [(n.name, n.instance_type, n.cpus, n.memory_mb) for n in built.nodes] == [
        ("controller", "m7i.xlarge", 4, int(16384 * 0.97)),
        ("login", "m7i.large", 2, int(8192 * 0.97)),
    ]
    (gpu,) = built.sets
    assert (gpu.group, gpu.count, gpu.static, gpu.instance_type, gpu.fabric) == ("gpu", 2, 2, "p5.48xlarge", "efa")
    assert (gpu.sockets, gpu.cores) == (2, 96)
    assert (gpu.cpus, gpu.memory_mb) == (192, int(2048 * 1024 * 0.97))
    assert (gpu.gpus.count, gpu.gpus.kind, gpu.gpus.type) == (8, "real", "h100")
    assert gpu.gpus.devices == tuple(f"/dev/nvidia{number}" for number in range(8))


def test_an_autoscaled_group_has_max_nodes_of_which_min_are_static() -> None:
    built = plan(spec(groups={"gpu": {"instance_type": "p5.48xlarge", "min": 1, "max": 64}}))
    assert (built.sets[0].count, built.sets[0].static) == (64, 1)
    assert len(built.members) == 66


def test_a_group_without_gpus_has_none() -> None:
    assert plan(spec(groups=group(instance_type="m7i.48xlarge"))).sets[0].gpus.count == 0


def test_sockets_are_unset_for_types_whose_sockets_are_not_documented() -> None:
    built = plan(spec(groups=group(instance_type="p5en.48xlarge"))).sets[0]
    assert (built.cpus, built.cores, built.sockets) == (192, 0, 0)


def test_slurm_gets_the_size_of_the_smallest_type_of_a_group() -> None:
    mixed = group(instance_type="g6.16xlarge", capacity={"fallback_types": ["g6.8xlarge"]})
    built = plan(spec(groups=mixed)).sets[0]
    assert (built.instance_type, built.cpus, built.memory_mb) == ("g6.16xlarge", 32, int(128 * 1024 * 0.97))
    assert (built.gpus.count, built.gpus.type, built.sockets) == (1, "l4", 0)


def test_a_disabled_login_node_is_left_out() -> None:
    assert [node.name for node in plan(spec(login={"enabled": False})).nodes] == ["controller"]


def test_writing_the_default_type_is_no_change() -> None:
    assert resolved(spec()).controller.instance_type == "m7i.xlarge"
    assert changes(spec(), spec(controller={"instance_type": "m7i.xlarge"}, login={"instance_type": "m7i.large"})) == []
    assert changes(spec(groups=group()), spec(groups=group(root_gb=200))) == []
    assert changes(spec(groups=group()), spec(groups=group(root_gb=500))) != []


def test_removed_and_replaced_nodes_are_affected() -> None:
    assert affected(spec(groups=group(count=4)), spec(groups=group(count=2))) == ("gpu-3", "gpu-4")
    other = spec(groups=group(instance_type="p5en.48xlarge"))
    assert affected(spec(groups=group()), other) == ("gpu-1", "gpu-2")
