"""Images of local nodes: built by the steps of bootstrap from the image of set-up, tested by booting, and recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

import docker
from docker.errors import ImageNotFound

from bootstrap.action import digest
from bootstrap.bake import (
    CLEANUP_SCRIPT,
    CLEANUP_TIMEOUT_S,
    build_image_probe,
    digest_contents,
    find_faults,
    plan_image,
)
from bootstrap.errors import BootstrapError
from bootstrap.execute import execute_steps
from bootstrap.facts.collect import collect_facts
from bootstrap.image_contents import RECORD, ImageContents, ImageRecord
from bootstrap.transport.base import TransportError
from cluster import names
from infra.home import Home, private_folder
from infra.resources.error import ResourceError
from infra.targets.local import docker_engine as engine_client
from infra.targets.local.upgrade import ContainerTransport, MachineArgs, open_machine
from infra.targets.mixins import MachineImage
from infra.targets.target import Console, Deployment

WHERE = "local.image"
_SLURM, _BASE, _BUILT = "muster.slurm", "muster.base", "muster.built"
_BUILDER = "image"
_UNTESTED = "-untested"
"""End of the tag of an image that has not passed its test."""
_LIST_PACKAGES = "dpkg-query -W -f '${Package} ${Version}\\n'"
# As a controller, whose daemons need most.
_CPUS, _MEMORY_MB = 2, 2048
_STOP_TIMEOUT_S = 30


def build_image(release: str, home: Home, deployment: Deployment, console: Console) -> MachineImage:
    """Build an image with everything that nodes of a release need, test it and record what is in it.

    An image with the same contents that the cluster has already stays as it is: nodes may run from it.
    """
    contents = ImageContents(roles=("controller", "login", "compute"), slurm=release, cloud=False)
    base = names.image(release)
    with _explained(), engine_client.api_session(WHERE) as api:
        base_id = _find_base(api, base)
        built = datetime.now(UTC).isoformat(timespec="seconds").removesuffix("+00:00")
        for tag in _remove_untested(api, deployment.cluster):
            console.say(f"removed the image {tag} of an earlier build, which was not tested")
        try:
            with console.status(f"building an image from {base}"), _machine(deployment, base) as transport:
                packages = _install(transport, contents, base_id, built)
                tag = f"{release}-{_digest(home, deployment.cluster, base_id, contents, packages)}"
                image = f"{names.BAKED_IMAGE}:{tag}"
                existing = next((each for each in list_images(deployment.cluster) if each.id == image), None)
                if existing is None:
                    labels = {_SLURM: release, _BASE: base, _BUILT: built}
                    _commit(api, deployment, f"{tag}{_UNTESTED}", labels)
            if existing is None:
                with console.status(f"testing {image}"), _machine(deployment, f"{image}{_UNTESTED}") as transport:
                    _check(transport, contents)
                api.tag(f"{image}{_UNTESTED}", names.BAKED_IMAGE, tag)
        finally:
            _remove_untested(api, deployment.cluster)
    if existing is not None:
        console.say(f"image {image} exists already, built at {existing.built} with the same contents; it stays")
        return existing
    record = {"image": image, "base": base, "base_id": base_id, "built": built, "packages": packages}
    path = private_folder(home.images) / f"{image.replace(':', '_')}.json"
    path.write_text(json.dumps(record | {"contents": contents.model_dump()}, indent=1, sort_keys=True) + "\n")
    console.say(f"image {image}: built from {base} and tested; contents: {path}")
    return MachineImage(image, "all", release, base, built)


def list_images(cluster: str) -> Sequence[MachineImage]:
    """Return the images that were built with a cluster's name, the latest first."""
    with engine_client.api_session(WHERE) as api:
        rows = _list_tags(api, cluster)
    images = (
        MachineImage(tag, "all", labels[_SLURM], labels[_BASE], labels[_BUILT])
        for tag, labels in rows
        if not tag.endswith(_UNTESTED)
    )
    return sorted(images, key=lambda image: image.built, reverse=True)


def list_all_images() -> tuple[str, ...]:
    """Return the images that were built on this machine, of all clusters and checkouts."""
    with engine_client.api_session(WHERE) as api:
        rows = api.images(filters={"reference": names.BAKED_IMAGE})
    tags = (tag for row in rows for tag in row["RepoTags"] or ())
    return tuple(sorted(tag for tag in tags if not tag.endswith(_UNTESTED)))


def remove_image(home: Home, cluster: str, image: str) -> None:
    """Remove an image and its record; raise ResourceError if the cluster has no such image, or nodes run from it."""
    own_images = [listed.id for listed in list_images(cluster)]
    if image not in own_images:
        what = f"'{image}' is no image of cluster {cluster}"
        raise ResourceError("", what, f"allowed: {', '.join(own_images) or 'none, it has no images'}")
    with engine_client.api_session(WHERE) as api:
        users = [row["Names"][0].lstrip("/") for row in api.containers(all=True, filters={"ancestor": image})]
        if users:
            raise ResourceError("", f"{', '.join(sorted(users))} run from '{image}'", "remove that cluster first")
        api.remove_image(image)
    (home.images / f"{image.replace(':', '_')}.json").unlink(missing_ok=True)


def _find_base(api: docker.APIClient, base: str) -> str:
    """Return the id of the image that is built from; raise ResourceError if it does not exist."""
    try:
        description = api.inspect_image(base)  # type: ignore[no-untyped-call]  # its stub has no types
    except ImageNotFound:
        raise ResourceError(WHERE, f"the node image {base} does not exist", "`make setup` builds it") from None
    return str(description["Id"])


def _digest(home: Home, cluster: str, base_id: str, contents: ImageContents, packages: Mapping[str, str]) -> str:
    """Return what tells images apart; those of two clusters are two, so that neither removes the other's."""
    owner = json.dumps([cluster, names.home_labels(home.root)], sort_keys=True)
    return digest(owner, base_id, digest_contents(contents), json.dumps(packages, sort_keys=True))[:12]


def _list_tags(api: docker.APIClient, cluster: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return all tags of a cluster's images with their labels, also of those that are not tested."""
    filters = {"label": [f"{names.CLUSTER}={cluster}"], "reference": names.BAKED_IMAGE}
    listed = [row for row in api.images(filters=filters) if not engine_client.is_foreign(row["Labels"])]
    return [(tag, row["Labels"]) for row in listed for tag in row["RepoTags"] or ()]


def _remove_untested(api: docker.APIClient, cluster: str) -> list[str]:
    """Remove the images that builds have left before their test, and return them."""
    untested = [tag for tag, _labels in _list_tags(api, cluster) if tag.endswith(_UNTESTED)]
    for tag in untested:
        api.remove_image(tag, force=True)
    return untested


@contextmanager
def _machine(deployment: Deployment, image: str) -> Iterator[ContainerTransport]:
    """Yield a container that booted from an image; it can reach a mirror, if this machine can."""
    args = MachineArgs(deployment.cluster, deployment.stack, _BUILDER, image, _CPUS, _MEMORY_MB, _BUILDER, "bridge")
    with open_machine(args) as transport:
        yield transport


def _install(transport: ContainerTransport, contents: ImageContents, base_id: str, built: str) -> Mapping[str, str]:
    """Install the contents, clean the machine, and return the versions of its packages."""
    facts = collect_facts(transport, _BUILDER, build_image_probe(contents))
    execute_steps(transport, _BUILDER, plan_image(facts, contents), lambda _event: None)
    record = ImageRecord(contents=contents, digest=digest_contents(contents), bundle=base_id, built=built)
    transport.put(RECORD, record.model_dump_json().encode())
    listed = transport.run(_LIST_PACKAGES).out
    cleaned = transport.run(CLEANUP_SCRIPT, timeout=CLEANUP_TIMEOUT_S)
    if cleaned.code:
        raise BootstrapError(_BUILDER, "clean", cleaned.err.strip(), fix="build the image again")
    return dict(line.split() for line in listed.splitlines())


def _commit(api: docker.APIClient, deployment: Deployment, tag: str, labels: Mapping[str, str]) -> None:
    container = names.container(deployment.cluster, _BUILDER)
    # What is only in memory is not in an image.
    api.stop(container, timeout=_STOP_TIMEOUT_S)
    changes = [f"LABEL {key}={json.dumps(value)}" for key, value in labels.items()]
    api.commit(container, names.BAKED_IMAGE, tag, changes=changes)


def _check(transport: ContainerTransport, contents: ImageContents) -> None:
    facts = collect_facts(transport, _BUILDER, build_image_probe(contents))
    record = ImageRecord.model_validate_json(transport.get(RECORD))

    def has_program(name: str) -> bool:
        return transport.run(f"command -v {name}").code == 0

    if faults := find_faults(facts, contents, record, has_program):
        raise BootstrapError(_BUILDER, "check", "; ".join(faults), fix="build the image again")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (BootstrapError, TransportError) as error:
        raise ResourceError(
            WHERE, f"the image could not be built: {error}", "remove the cause and build again"
        ) from None
