"""A Kubernetes cluster of a test: start, stop, nodes by name, and waiting for what the API server says."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setup import kubernetes
from setup.paths import Paths
from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.e2e.kubernetes.images import PAUSE_IMAGE, build_pause, unpack_images
from tests.e2e.kubernetes.job_sets import start_job_sets
from tests.e2e.kubernetes.node import Node
from tests.e2e.kubernetes.processes import Namespace
from tests.harness import wait_until

ADDRESS = "10.77.0.1"


@dataclass
class Cluster:
    """A running cluster."""

    control_plane: ControlPlane
    nodes: dict[str, Node]

    def kubectl(self, *arguments: str, data: str = "", timeout_s: float = 120) -> str:
        """Run kubectl as an administrator and return its output."""
        return self.control_plane.kubectl(*arguments, data=data, timeout_s=timeout_s)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return objects as the API server describes them."""
        answer: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "--output=json"))
        return answer

    def list_ready_nodes(self) -> set[str]:
        """Return the names of the nodes that are ready."""
        return {
            node["metadata"]["name"]
            for node in self.get("nodes")["items"]
            if any(part["type"] == "Ready" and part["status"] == "True" for part in node["status"]["conditions"])
        }


@contextmanager
def running_cluster(
    folder: Path, images: Sequence[str], mounts: Sequence[tuple[Path, str]], count: int
) -> Iterator[Cluster]:
    """Start a cluster with nodes that have images of the Docker engine; remove it at the end of the block."""
    programs = kubernetes.locate(Paths.from_environment())
    namespace = Namespace(f"kube-{uuid.uuid4().hex[:6]}", folder / "cluster", ADDRESS)
    names = tuple(f"n{number}" for number in range(1, count + 1))
    plane = ControlPlane(namespace, programs, names)
    cluster = Cluster(plane, {})
    # Whatever fails, also while a part is removed, the others are removed.
    with ExitStack() as cleanup:
        # The images are large, and pytest keeps folders.
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        cleanup.callback(namespace.close)
        try:
            build_pause(programs)
            unpacked = unpack_images([PAUSE_IMAGE.rpartition("/")[2], *images], folder / "images")
            namespace.open()
            plane.start()
            start_job_sets(plane)
            for index, name in enumerate(names):
                node = Node(namespace, programs, plane.kubeconfig(name), name, index)
                cluster.nodes[name] = node
                cleanup.callback(node.remove)
                node.create(unpacked, mounts)
                node.start()
            wait_until(lambda: cluster.list_ready_nodes() == set(names), "nodes that are ready")
            yield cluster
        except BaseException:
            with suppress(OSError):
                print(namespace.read_log_ends())
            raise
