"""Machines like those of EC2: containers that boot systemd and reach a metadata service and moto at the gateway.

Only user data turns them into nodes.
"""

from __future__ import annotations

import base64
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import docker
from docker.models.networks import Network
from docker.types import IPAMConfig, IPAMPool, Mount

from bootstrap import bundle as bundle_files
from bootstrap.bundle import Bundle, pack_node
from bootstrap.wheels import fetch_wheels
from cluster import names
from cluster.catalog.interpreter import PYTHON
from cluster.inventory import Filesystem, Inventory, Node, NodeSet, Role
from cluster.spec import ClusterSpec
from cluster.spec.model import Software
from infra.home import Home
from infra.resources import ssh_key
from infra.targets.aws.build.bundle import NODE_FOLDERS
from infra.targets.aws.build.inventory import METADATA_ADDRESSES
from infra.targets.aws.launcher.fleet import Fleet, FleetGroup
from infra.targets.aws.node import parameters
from infra.targets.aws.node.cloud import describe_cloud
from infra.targets.aws.node.parameters import Report
from infra.targets.aws.plan.images import image_fix
from infra.targets.aws.plan.user_data import user_data
from infra.targets.aws.spec import Aws
from infra.targets.local import cgroup_tree
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.build import node_container
from tests.container_script import Done, run_script
from tests.harness import REPO, wait_until
from tests.infra.targets.aws.node.metadata import Machine, metadata
from tests.infra.targets.aws.node.state_disk import DISK, StateDisk
from tests.moto_server import REGION, Moto, listening

CLUSTER = f"node-{os.getpid():x}"
LABELS = {names.CLUSTER: CLUSTER}
BUCKET = "muster-test"
SCRIPT = "/var/lib/user-data.sh"
RUN_S = 600
_ADDRESS = "169.254.169.254"
_METADATA = f"""
ip address show dev lo | grep -q {_ADDRESS} || ip address add {_ADDRESS}/32 dev lo
systemctl -q is-active metadata ||
  systemd-run -q --unit metadata --working-directory /run python3 -m http.server --bind {_ADDRESS} 80
until curl -s -m 10 -o /dev/null http://{_ADDRESS}/; do sleep 0.1; done
"""


@dataclass
class Machines:
    """The machines of a cluster: `boot` starts one, and `run` executes its user data."""

    moto: Moto
    network: str
    endpoint: str
    imds: str
    by_address: dict[str, Machine]
    addresses: dict[str, str] = field(default_factory=dict)
    keys: dict[Role, ssh_key.SshKey] = field(default_factory=dict)
    disk: StateDisk | None = None
    """Disk of the controller's state; by default it is on the machine itself."""

    def boot(self, name: str, role: Role, instance: str = "") -> None:
        """Start a machine; it takes over the address of an earlier machine with the same name."""
        env = {"volume": names.ENV_CACHE_VOLUME, "target": "/shared/env", "read_only": role != "controller"}
        shared = {"volume": names.volume(CLUSTER, "shared"), "target": "/shared"}
        props = {
            "cluster": CLUSTER, "stack": "node", "node": name, "role": role, "image": names.image(Software().slurm),
            "cpus": 2, "memory_mb": 1024, "devices": [], "mounts": [shared, env],
        }  # fmt: skip
        api = engine_client.connect()
        host = node_container.host_config(props, engine_client.engine(), api.api_version)
        if self.disk and role == "controller":
            self._attach(host, self.disk)
        place = api.create_endpoint_config(ipv4_address=self.addresses.get(name))
        container = api.create_container(
            **node_container.options(props, LABELS),
            host_config=host,
            networking_config={"EndpointsConfig": {self.network: place}},
        )
        # Images generate a host key at the first boot; user data replaces it with the pinned one.
        first = ssh_key.generate(name)
        api.put_archive(container["Id"], "/", node_container.archive_keys("", first.private, first.public))
        api.start(container["Id"])
        address = api.inspect_container(container["Id"])["NetworkSettings"]["Networks"][self.network]["IPAddress"]
        self.addresses[name] = address
        self.by_address[address] = Machine(instance or f"i-{name}", address, {names.NODE: name, names.ROLE: role})
        self.wait_for(name)

    def wait_for(self, name: str) -> None:
        wait_until(lambda: self.do(name, "systemctl -q is-active ssh").code == 0, f"{name} has booted")

    def cut_power(self, name: str) -> None:
        """Stop a machine without flushing the kernel's buffers to its disk."""
        if self.disk:
            assert self.do(name, self.disk.lose_power).code == 0
        engine_client.connect().kill(names.container(CLUSTER, name), "SIGKILL")

    def lose(self, name: str) -> None:
        """Remove a machine and its own disks."""
        self.cut_power(name)
        engine_client.connect().remove_container(names.container(CLUSTER, name), v=True, force=True)

    def is_running(self, name: str) -> bool:
        """Return whether a machine runs; one that restarts stops, as a container has no firmware to start it again."""
        return bool(docker.from_env().containers.get(names.container(CLUSTER, name)).status == "running")

    def power_on(self, name: str) -> None:
        """Boot a machine again with the same disks and address, as EC2 does when it recovers one."""
        engine_client.connect().start(names.container(CLUSTER, name))
        self.wait_for(name)

    def run(self, name: str, script: str) -> Done:
        """Execute user data as EC2 does, with moto and the fake metadata service as endpoints."""
        self.put(name, SCRIPT, script.encode())
        endpoints = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_EC2_METADATA_SERVICE_ENDPOINT": self.imds}
        return self.do(name, f"timeout {RUN_S} sh {SCRIPT} </dev/null", endpoints)

    def do(self, name: str, script: str, environment: dict[str, str] | None = None) -> Done:
        container = docker.from_env().containers.get(names.container(CLUSTER, name))
        return run_script(container, script, environment=environment)

    def metadata_answers(self, name: str, user: str) -> bool:
        """Return whether a user reaches the metadata address, at which a server on the machine itself listens."""
        self.do(name, _METADATA)
        return self.do(name, f"cd / && runuser -u {user} -- curl -s -m 10 -o /dev/null http://{_ADDRESS}/").code == 0

    def put(self, name: str, path: str, data: bytes) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        engine_client.connect().put_archive(names.container(CLUSTER, name), "/", packed.getvalue())

    def report(self, name: str) -> Report:
        answer = self.moto.client("ssm").get_parameter(Name=parameters.node(CLUSTER, name))
        return Report.model_validate_json(answer["Parameter"]["Value"])

    def explain(self, name: str) -> str:
        """Return why a node does not run jobs, for the message of a failed assertion."""
        on_node = (
            "tail -n 30 /var/log/muster/node.log; journalctl -o cat -n 30 -u slurmd; systemctl --failed --no-legend"
        )
        on_controller = f"sinfo -N; scontrol show node {name}; journalctl -o cat -n 30 -u slurmctld"
        return f"{self.do(name, on_node).out}\n{self.do('controller', on_controller).out}"

    def ship(self) -> Bundle:
        """Store what the engine stores in AWS before a machine starts, and return the bundle."""
        s3, ssm = self.moto.client("s3"), self.moto.client("ssm")
        s3.create_bucket(Bucket=BUCKET)
        bundle = pack_node(REPO, fetch_wheels(REPO, Home.of(os.environ).cache), self._files(), NODE_FOLDERS)
        s3.put_object(Bucket=BUCKET, Key=parameters.bundle(bundle.sha256), Body=bundle.archive)
        s3.put_object(Bucket=BUCKET, Key=parameters.FLEET, Body=self._fleet().model_dump_json())
        secrets = {
            parameters.slurm_key(CLUSTER): base64.b64encode(os.urandom(1024)).decode(),
            parameters.db_password(CLUSTER): "a-password",
            parameters.host_key(CLUSTER, "controller"): self.keys["controller"].private,
        }
        for machine in (each for each in self.by_address.values() if each.tags[names.ROLE] == "compute"):
            key = parameters.own_host_key(f"arn:aws:ec2:{REGION}:123456789012:instance/{machine.instance}")
            s3.put_object(Bucket=BUCKET, Key=key, Body=self.keys["compute"].private.encode())
        for name, value in secrets.items():
            ssm.put_parameter(Name=name, Value=value, Type="SecureString")
        return bundle

    def script(self, bundle: Bundle, role: Role, **other: str) -> str:
        fields = {"digest": bundle.digest, "sha256": bundle.sha256} | other
        return user_data(
            bucket=BUCKET, region=REGION, role=role, cluster=CLUSTER, python=PYTHON.archives["x86_64"], **fields
        )

    def _attach(self, host: dict[str, Any], disk: StateDisk) -> None:
        device = {"PathOnHost": disk.device, "PathInContainer": f"/dev/{DISK}", "CgroupPermissions": "rwm"}
        host["Devices"] = [*(host.get("Devices") or []), device]
        host["Mounts"] = [*host["Mounts"], Mount(target="/sys/block", source=disk.kernel, type="volume")]

    def _files(self) -> dict[str, bytes]:
        spec: dict[str, Any] = {
            "name": CLUSTER, "target": "aws", "aws": {"region": REGION}, "groups": {"gpu": {"count": 1}},
            "storage": {"shared": {"kind": "existing", "mount": "/shared", "id": "fs-0123456789abcdef0"}},
            "login": {"enabled": False}, "users": {"alice": {"uid": 2001}},
        }  # fmt: skip
        controller = Node(
            name="controller", role="controller", address=self.addresses["controller"], cpus=1, memory_mb=1024,
            host_key=self.keys["controller"].public, machine_id="eni-controller",
        )  # fmt: skip
        group = NodeSet(
            group="gpu", count=1, static=1, cpus=2, memory_mb=1024, host_keys=(self.keys["compute"].public,)
        )
        shared = Filesystem(kind="nfs", mount="/shared", host="mounted-already")
        cloud = describe_cloud(
            region=REGION, bucket=BUCKET, domain=f"{CLUSTER}.muster.internal", filesystems=(shared,),
            state_volume=self.disk.volume if self.disk else None, image_fix=image_fix(Aws(region=REGION)),
        )  # fmt: skip
        # These machines have no route out: the environment on the cache volume has the Python of their image.
        cloud = cloud.model_copy(update={"interpreter": None})
        inventory = Inventory(
            cluster=CLUSTER, target="aws", nodes=(controller,), sets=(group,), metadata_addresses=METADATA_ADDRESSES
        )
        return {
            bundle_files.SPEC: ClusterSpec.model_validate(spec).model_dump_json().encode(),
            bundle_files.INVENTORY: inventory.model_dump_json().encode(),
            bundle_files.CLOUD: cloud.model_dump_json().encode(),
            bundle_files.PUBLIC_KEY: ssh_key.generate("cluster").public.encode(),
        }

    def _fleet(self) -> Fleet:
        return Fleet(
            cluster=CLUSTER, stack="node", region=REGION, hosted_zone_id="Z0", domain=f"{CLUSTER}.muster.internal",
            bundle="", tags={}, groups=(FleetGroup(name="gpu", options=(), interfaces=(), security_groups=()),),
        )  # fmt: skip


@contextmanager
def machines(moto: Moto, disk: StateDisk | None = None) -> Iterator[Machines]:
    client = docker.from_env()
    network = _network(client)
    try:
        client.volumes.create(names.volume(CLUSTER, "shared"), labels=LABELS)
        network.reload()
        gateway = network.attrs["IPAM"]["Config"][0]["Gateway"]
        by_address: dict[str, Machine] = {}
        keys: dict[Role, ssh_key.SshKey] = {role: ssh_key.generate(role) for role in ("controller", "compute")}
        with listening(moto, gateway) as endpoint, metadata(gateway, by_address) as imds:
            yield Machines(moto, names.network(CLUSTER), endpoint, imds, by_address, keys=keys, disk=disk)
    finally:
        for container in client.containers.list(all=True, filters={"label": f"{names.CLUSTER}={CLUSTER}"}):
            container.remove(force=True, v=True)
        network.remove()
        client.volumes.get(names.volume(CLUSTER, "shared")).remove(force=True)
        cgroup_tree.remove_cluster(CLUSTER)


def _network(client: docker.DockerClient) -> Network:
    """Create the network twice: first to find a free range, then with that range.

    Docker assigns fixed addresses only in a range that was given explicitly.
    """
    name, options = names.network(CLUSTER), {"driver": "bridge", "internal": True, "labels": LABELS}
    trial = client.networks.create(name, **options)
    trial.reload()
    free = trial.attrs["IPAM"]["Config"][0]
    trial.remove()
    pool = IPAMPool(subnet=free["Subnet"], gateway=free["Gateway"])
    return client.networks.create(name, ipam=IPAMConfig(pool_configs=[pool]), **options)
