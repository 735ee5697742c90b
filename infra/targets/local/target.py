"""The local target: containers of the Docker engine on this machine."""

# ruff: noqa: PLC0415
# Docker's and Pulumi's libraries are imported inside methods: every command imports every target's class.
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cluster import names
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.cost import Cost
from infra.targets.local import plan, validate
from infra.targets.local.spec import Local, own_image
from infra.targets.mixins import (
    Archives,
    HostFacts,
    Images,
    MachineImage,
    ManagedStorage,
    OnThisMachine,
    Pushes,
    RotatesKeys,
    UpgradeNodes,
    Upgrades,
)
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from bootstrap.transport.base import Transport
    from bootstrap.upgrade.steps import PublishedPackages
    from cluster.inventory import Node
    from infra.engine.stop import Stop
    from infra.receipt import CacheEntry
    from infra.resources.job_queue import JobQueue
    from infra.targets.facts import Facts


class LocalTarget(Target, Archives, Images, ManagedStorage, OnThisMachine, Pushes, RotatesKeys, Upgrades):
    """The target whose nodes are containers that run systemd and sshd, with simulated GPUs."""

    name = "local"
    reserved_tags = ("com.docker.",)
    section = Local
    images_need_cluster = False
    image_use = (
        "then create the cluster again (`make teardown`, `make up`): it keeps its image while it exists. Queue and "
        "accounting end with it (`make backup` first; `make restore` after)"
    )
    examples = ("local", "local-full", "local-required")
    capabilities = Capabilities(
        machine=frozenset({"size"}), gpus=frozenset({"simulated"}), storage=frozenset({"volume"})
    )

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002
        return [issue for rule in validate.SPEC_RULES for issue in rule(spec)]

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan.plan(spec)

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return plan.resolve(spec)

    def cost(self, spec: ClusterSpec) -> Cost:  # noqa: ARG002  # this machine costs the same whatever runs on it
        return Cost()

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.resources.start import start_slurm
        from infra.targets.local.build.cluster import LocalCluster

        cluster = LocalCluster(plan, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_slurm, cluster.inventory, context))

    def labelled_clusters(self, stack: str) -> Sequence[str]:
        from infra.targets.local import leftovers

        return leftovers.clusters_of(stack)

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.targets.local.queue import queue

        return queue(deployment)

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:  # noqa: ARG002
        from infra.targets.local.facts import gather

        return gather(inventory, stack)

    def leftovers(self, deployment: Deployment) -> Leftovers:
        from infra.targets.local import leftovers

        state = Home.of(os.environ).with_file_state().stack(deployment.stack).state
        return Leftovers(leftovers.find(deployment.cluster, state))

    def remove(self, leftover: Leftover, until: float) -> None:  # noqa: ARG002  # Docker waits by itself
        from infra.targets.local import leftovers

        leftovers.remove(leftover)

    def measure(self, leftover: Leftover) -> int | None:
        from infra.targets.local import leftovers

        return leftovers.measure(leftover)

    def host_facts(self) -> HostFacts:
        from infra.targets.local import docker_engine, images

        info = docker_engine.connect().info()
        return HostFacts(
            cpus=int(info["NCPU"]),
            memory_mb=int(info["MemTotal"]) // 2**20,
            can_limit_memory=bool(info.get("MemoryLimit", True)),
            images=images.list_all_images(),
        )

    def validate_host(self, spec: ClusterSpec, host: HostFacts) -> Iterable[Issue]:
        return [issue for rule in validate.HOST_RULES for issue in rule(spec, host)]

    def check_name_free(self, spec: ClusterSpec, stack: str) -> None:
        from infra.targets.local import docker_engine

        docker_engine.check_name_free(spec.name, stack)

    def check_release(self, spec: ClusterSpec, stack: StackHome, release: str) -> None:  # noqa: ARG002
        # ARG002: the answer depends on the images of this machine, not on the folder of the stack.
        from infra.targets.local.upgrade import check_release

        if image := own_image(spec):
            what = f"'{image}' has Slurm {spec.software.slurm}, and a cluster keeps its image"
            raise ResourceError("local.image", what, f"create a cluster without it, or with an image of {release}")
        check_release(release)

    def reach_nodes(self, spec: ClusterSpec, stack: StackHome, inventory: Inventory) -> UpgradeNodes:  # noqa: ARG002
        from infra.targets.local.upgrade import reach_nodes

        return reach_nodes(stack, inventory)

    def publish_packages(
        self,
        spec: ClusterSpec,
        stack: StackHome,
        nodes: UpgradeNodes,  # noqa: ARG002  # they share a volume
        release: str,
    ) -> PublishedPackages:
        from infra.targets.local.upgrade import publish_packages

        return publish_packages(plan.plan(spec), stack.name, release)

    def open_twin(
        self, spec: ClusterSpec, stack: str, controller: Node, release: str
    ) -> AbstractContextManager[Transport]:
        from infra.targets.local.upgrade import MachineArgs, open_machine

        planned = next(node for node in plan.plan(spec).nodes if node.name == controller.name)
        image = names.image(release)
        return open_machine(MachineArgs(spec.name, stack, controller.name, image, planned.cpus, planned.memory_mb))

    def build_images(
        self, spec: ClusterSpec, stack: StackHome, deployment: Deployment, console: Console
    ) -> Mapping[str, MachineImage]:
        from infra.targets.local.images import build_image

        return {"local.image": build_image(spec.software.slurm, stack.home, deployment, console)}

    def list_images(self, deployment: Deployment) -> Sequence[MachineImage]:
        from infra.targets.local.images import list_images

        return list_images(deployment.cluster)

    def remove_image(self, deployment: Deployment, image: str) -> None:
        from infra.targets.local.images import remove_image

        remove_image(Home.of(os.environ), deployment.cluster, image)

    def explain_error(self, failure: Exception) -> Stop | None:
        from infra.targets.local.errors import explain

        return explain(failure)

    def caches(self, home: Home) -> tuple[CacheEntry, ...]:
        from infra.targets.local.caches import caches

        return caches(home)

    def drop_caches(self, home: Home) -> tuple[CacheEntry, ...]:
        from infra.targets.local.caches import drop

        return drop(home)
