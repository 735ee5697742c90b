"""A node of a test's cluster: containerd and kubelet in a mount namespace and cgroups of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.kubernetes.images import PAUSE_IMAGE, read_base_spec
from tests.e2e.kubernetes.processes import (
    Namespace,
    find_processes,
    kill_cgroup,
    list_pids,
    make_cgroup,
    remove_cgroup,
)

# Kubelet sets these for the whole machine. It gets plain files instead, so that the machine's values stay.
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


@dataclass
class Node:
    """A node with an index, from which its ports and the addresses of its pods follow."""

    namespace: Namespace
    programs: Path
    kubeconfig: Path
    name: str
    index: int

    @property
    def folder(self) -> Path:
        return self.namespace.folder / self.name

    @property
    def cgroup(self) -> str:
        return f"{self.namespace.name}-{self.name}"

    def create(self, images: Path, mounts: Sequence[tuple[Path, str]]) -> None:
        """Write the settings; containers get the mounts as a node's driver would give them, and the images are there.

        `images` is a folder of containerd with unpacked images, which never change: the node gets links to them.
        """
        for name in ("cni", "root", "run", "state", "sysctls"):
            (self.folder / name).mkdir(parents=True)
        data = self.folder / "data"
        subprocess.run(["cp", "-al", images, data], check=True)
        for database in [*data.glob("*/meta.db"), *data.glob("*/metadata.db")]:
            copy = database.with_suffix(".copy")
            shutil.copyfile(database, copy)
            copy.replace(database)
        (self.folder / "cni/10-bridge.conflist").write_text(json.dumps(self._describe_network()))
        (self.folder / "spec.json").write_text(json.dumps(read_base_spec(mounts)))
        (self.folder / "containerd.toml").write_text(self._describe_containerd())
        (self.folder / "resolv.conf").write_text(f"nameserver {self.namespace.address}\n")
        (self.folder / "kubelet.json").write_text(json.dumps(self._describe_kubelet()))

    def start(self) -> None:
        """Start the node's processes, also after it was lost: its data is still there."""
        make_cgroup(self.cgroup)
        self.namespace.start(self.name, "unshare", "--mount", "sh", "-euc", self._write_script())

    def lose(self) -> None:
        """End everything on the node at once, as if its power failed. Kubelet goes first: it restarts containers."""
        self.namespace.end(self.name, abruptly=True)
        self._end_containers()

    def remove(self) -> None:
        """End everything on the node and remove its cgroups."""
        if self.name in self.namespace.processes:
            self.lose()
        self._end_containers()
        remove_cgroup(self.cgroup)

    def kill_container(self, container: str) -> None:
        """Kill the processes of a container, by the id in the status of its pod."""
        pids = list_pids(self.cgroup, container.rpartition("//")[2])
        assert pids, container
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_containers(self) -> None:
        for pid in find_processes(f"{self.folder}/run/"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        kill_cgroup(self.cgroup)

    @property
    def _socket(self) -> Path:
        return self.folder / "run/containerd.sock"

    def _write_script(self) -> str:
        """Return the script of the node; kubelet's mounts of volumes must be visible to containerd, and to no other."""
        lines = ["mount --make-rprivate /"]
        for name, value in _SYSCTLS.items():
            file = self.folder / "sysctls" / name.replace("/", ".")
            file.write_text(f"{value}\n")
            lines.append(f"[ ! -e /proc/sys/{name} ] || mount --bind {file} /proc/sys/{name}")
        log = self.namespace.log(f"containerd-{self.name}")
        kubelet = [
            self.programs / "bin/kubelet",
            *(f"--config={self.folder / 'kubelet.json'}", f"--kubeconfig={self.kubeconfig}"),
            *(f"--root-dir={self.folder / 'root'}", f"--cert-dir={self.folder / 'certificates'}"),
            *(f"--hostname-override={self.name}", f"--node-ip={self.namespace.address}"),
        ]
        return "\n".join(
            [
                *lines,
                "mount --make-rshared /",
                f"containerd --config={self.folder / 'containerd.toml'} >>{log} 2>&1 &",
                f"until ctr --address={self._socket} version >/dev/null 2>&1; do sleep 0.2; done",
                f"exec {' '.join(map(str, kubelet))}",
            ]
        )

    def _describe_network(self) -> dict[str, object]:
        prefix, _, _ = self.namespace.address.rpartition(".")
        pods = f"{prefix.rpartition('.')[0]}.{self.index + 1}"
        addresses = {
            "subnet": f"{prefix}.0/16",
            "rangeStart": f"{pods}.2",
            "rangeEnd": f"{pods}.250",
            "gateway": self.namespace.address,
        }
        ipam = {
            "type": "host-local",
            "dataDir": str(self.folder / "addresses"),
            "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[addresses]],
        }
        bridge = {"type": "bridge", "bridge": "pods", "isGateway": True, "ipMasq": False, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _describe_containerd(self) -> str:
        cri = 'plugins."io.containerd.grpc.v1.cri"'
        return f"""version = 2
root = "{self.folder}/data"
state = "{self.folder}/state"
[grpc]
  address = "{self._socket}"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  disable_hugetlb_controller = true
[{cri}.cni]
  bin_dir = "{self.programs}/debian/usr/lib/cni"
  conf_dir = "{self.folder}/cni"
[{cri}.containerd]
  snapshotter = "overlayfs"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  base_runtime_spec = "{self.folder}/spec.json"
[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
"""

    def _describe_kubelet(self) -> dict[str, object]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "enforceNodeAllocatable": ["pods"],
            # Root in a container may not lower the score or raise the limit.
            "oomScoreAdj": 0,
            "maxOpenFiles": 20_000,
            "makeIPTablesUtilChains": False,
            "port": 10_250 + 10 * self.index,
            "healthzPort": 10_248 + 10 * self.index,
            "readOnlyPort": 0,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            "clusterDNS": [self.namespace.address],
            "clusterDomain": "cluster.local",
            "resolvConf": str(self.folder / "resolv.conf"),
            "evictionHard": {"memory.available": "50Mi"},
            "imageGCHighThresholdPercent": 100,
            "podLogsDir": str(self.folder / "logs"),
        }
