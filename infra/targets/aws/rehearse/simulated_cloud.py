"""What a rehearsal runs on: an account of moto, and at the network's gateway everything that machines reach of AWS."""

from __future__ import annotations

import logging
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from docker.types import Mount
from moto.route53.models import route53_backends

from bootstrap.training_environment import environment_folder
from bootstrap.wheels import WheelsError, fetch_wheels
from cluster import names
from cluster.catalog.instances import instance
from cluster.catalog.interpreter import PYTHON
from infra.engine.stop import Stop
from infra.targets.aws import names as aws_names
from infra.targets.aws.build.bundle import ARCHITECTURES
from infra.targets.aws.plan import images, machines
from infra.targets.aws.rehearse import moto_calls, moto_gaps
from infra.targets.aws.rehearse.certificates import Authority
from infra.targets.aws.rehearse.cleanup import remove_all
from infra.targets.aws.rehearse.delays import Clock
from infra.targets.aws.rehearse.disks import Disks
from infra.targets.aws.rehearse.dns import serve_names
from infra.targets.aws.rehearse.existing_resources import create_existing
from infra.targets.aws.rehearse.instances import Instances
from infra.targets.aws.rehearse.judge import make_judge
from infra.targets.aws.rehearse.machine import ENVIRONMENTS, Ports, Site
from infra.targets.aws.rehearse.metadata import Metadata, serve_metadata
from infra.targets.aws.rehearse.mirror import Mirror, make_mirror, serve_files
from infra.targets.aws.rehearse.moto_account import MotoAccount
from infra.targets.aws.rehearse.moto_hooks import connect_instances
from infra.targets.aws.rehearse.moto_server import ACCOUNT, Moto, listening
from infra.targets.aws.rehearse.moto_states import delay_resources
from infra.targets.aws.rehearse.names_of_aws import resolve_name
from infra.targets.aws.rehearse.nfs import serve_file_systems
from infra.targets.aws.rehearse.rehearsed_stack import RehearsedStack, list_types
from infra.targets.aws.rehearse.short_container import run_short_container
from infra.targets.aws.rehearse.storage_volumes import StorageVolumes
from infra.targets.aws.rehearse.timeline import Timeline
from infra.targets.aws.rehearse.vpc_network import find_gateway
from infra.targets.aws.spec import region_of
from infra.targets.local.upgrade import check_release


@dataclass(frozen=True)
class SimulatedCloud:
    """A running rehearsal."""

    moto: Moto
    moto_account: MotoAccount
    instances: Instances
    timeline: Timeline
    denials: list[str]
    """Calls of machines that their role does not permit."""
    existing: frozenset[str]
    """What was billed before the rehearsal: not the cluster's, so it stays."""

    @property
    def account(self) -> str:
        """Number of the account."""
        return self.moto_account.id

    def client(self, service: str) -> Any:
        """Return a client with the rights of the person who runs `up`."""
        return self.moto.client(service, self.moto_account.region)


@contextmanager
def open_cloud(rehearsed: RehearsedStack, clock: Clock, timeline: Timeline) -> Iterator[SimulatedCloud]:
    """Yield a simulated account whose instances are containers in its claimed network; remove them at the end."""
    cluster, labels = rehearsed.cluster, dict(rehearsed.labels)
    # moto has no price list and prints a traceback for every request.
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    moto_calls.apply()
    moto_gaps.apply()
    # Scripts of Run Command run as root, and every process of this machine can reach moto.
    moto = Moto(access_key=f"ASIA{secrets.token_hex(8).upper()}", judge=lambda *_: "the rehearsal has not begun")
    moto.reset()
    published = {
        kind: moto_gaps.publish_image(path, region_of(rehearsed.spec))
        for kind, path in images.parameters(rehearsed.spec).items()
    }
    disks = Disks(cluster, labels)
    with ExitStack() as stack:
        stack.push(_make_cleanup(cluster, disks, timeline))
        gateway = find_gateway(rehearsed.cidr)

        def find_metadata(address: str) -> Metadata | None:
            return instances.find_metadata(address)

        pinned = Path(environment_folder("", _lock(rehearsed), PYTHON)).name
        volumes = StorageVolumes(cluster, labels, _cached_environment(rehearsed), pinned)
        closing = threading.Event()
        account = MotoAccount(ACCOUNT, region_of(rehearsed.spec))
        create_existing(rehearsed.spec, account, rehearsed.cidr)
        mirror = make_mirror()
        served = _serve(stack, account, moto, gateway, mirror=mirror, find=find_metadata)
        # The end of the rehearsal also ends every wait.
        clock = replace(clock, sleep=closing.wait)
        instances = Instances(
            site=Site(
                cluster=cluster,
                network=names.network(cluster),
                gateway=gateway,
                ports=served.ports,
                domain=aws_names.domain(rehearsed.spec.name),
                authority=served.authority,
                labels=labels,
                lists_s=clock.draw("package lists", "packages"),
                package_s=clock.draw("package installation", "packages") / clock.speed,
                archive_s=clock.draw("installation from the archive", "packages") / clock.speed,
                build_s=clock.draw("Slurm build", "packages") / clock.speed,
                speed=clock.speed,
                digests=mirror.render_digests(),
            ),
            clock=clock,
            timeline=timeline,
            types={name: instance(name) for name in list_types(rehearsed.spec)},
            efa_groups=frozenset(name for name, group in rehearsed.spec.groups.items() if group.fabric == "efa"),
            list_storage=lambda: volumes.prepare(account.list_file_systems()),
            disks=disks,
            node_image=_require_image(rehearsed.spec.software.slurm),
            driver_images=frozenset(image for kind, image in published.items() if kind.startswith(images.GPU)),
            closing=closing,
        )
        stack.enter_context(connect_instances(instances))
        stack.enter_context(delay_resources(clock, timeline))
        stack.callback(instances.close)
        denials: list[str] = []
        moto.judge = make_judge(account, instances, moto.access_key, denials)
        yield SimulatedCloud(moto, account, instances, timeline, denials, frozenset(account.list_billed()))


def _require_image(release: str) -> str:
    check_release(release)
    return names.image(release)


@dataclass(frozen=True)
class _Served:
    ports: Ports
    authority: bytes


def _serve(  # noqa: PLR0913
    stack: ExitStack,
    account: MotoAccount,
    moto: Moto,
    gateway: str,
    *,
    mirror: Mirror,
    find: Callable[[str], Metadata | None],
) -> _Served:
    region = account.region
    # AWS's libraries use a name of S3 without a region for us-east-1.
    parts = (region, f"efs.{region}", f"s3.{region}", "s3")
    hosts = ["*.amazonaws.com", *(f"*.{part}.amazonaws.com" for part in parts)]
    authority = Authority.create()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))

    def resolve(name: str) -> str | None:
        return resolve_name(name, route53_backends[ACCOUNT]["aws"].zones, account.list_mountable(), mirror.hosts)

    moto.url = stack.enter_context(listening(moto))
    at_gateway = stack.enter_context(listening(moto, gateway, authority.issue(hosts, folder)))
    ports = Ports(
        metadata=stack.enter_context(serve_metadata(gateway, find)),
        dns=stack.enter_context(serve_names(gateway, resolve)),
        api=urlsplit(at_gateway).port or 0,
        nfs=stack.enter_context(serve_file_systems(gateway, authority.issue(hosts, folder))),
        mirror=stack.enter_context(serve_files(mirror, gateway, authority.issue(mirror.hosts, folder))),
    )
    return _Served(ports, authority.pem)


def require_environment(rehearsed: RehearsedStack) -> None:
    """Raise Stop if machines would lack the training environment, which must be cached, or wheels.

    Wheels are downloaded if they are not cached, so that a rehearsal without a network fails before it has begun.
    """
    _require_wheels(rehearsed)
    folder = _cached_environment(rehearsed)
    mount = Mount(ENVIRONMENTS, names.ENV_CACHE_VOLUME, type="volume", read_only=True)
    code, _ = run_short_container(f"test -e {ENVIRONMENTS}/{folder}/.complete", [mount], rehearsed.labels)
    if code:
        what = f"the training environment {folder} is not cached; machines of a rehearsal have no network"
        raise Stop(what, "run `make setup`")


def _require_wheels(rehearsed: RehearsedStack) -> None:
    architecture = machines.controller(rehearsed.spec).architecture
    try:
        fetch_wheels(rehearsed.home.repo, rehearsed.home.cache, ARCHITECTURES[architecture])
    except WheelsError as error:
        what = f"the wheels of the machines are not cached and cannot be downloaded: {error}"
        raise Stop(what, "rehearse once with access to a Python package index") from error


def _cached_environment(rehearsed: RehearsedStack) -> str:
    return Path(environment_folder("", _lock(rehearsed), None)).name


def _lock(rehearsed: RehearsedStack) -> bytes:
    return (rehearsed.home.repo / rehearsed.spec.software.training_lock).read_bytes()


def _make_cleanup(cluster: str, disks: Disks, timeline: Timeline) -> Callable[..., None]:
    """Return the function that removes everything; what it cannot remove is an error unless there was one before."""

    def clean(_kind: object, earlier: BaseException | None, _traceback: object) -> None:
        errors = remove_all(cluster, disks)
        if not errors:
            return
        what = f"left on this machine: {'; '.join(errors)}"
        timeline.record("cleanup", what)
        if earlier is None:
            raise Stop(what, f"remove what has the label {names.CLUSTER}={cluster}, or rehearse again")

    return clean
