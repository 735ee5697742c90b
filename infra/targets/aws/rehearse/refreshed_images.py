"""Scenario of a rehearsal in which all machines are replaced, group by group, with ones from baked images."""

from __future__ import annotations

import time
from typing import Any

import yaml

from cluster.names import members
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.plan import images
from infra.targets.aws.rehearse.cold_start import check_baked_start, report_cold_start
from infra.targets.aws.rehearse.first_job import FirstJob, check_baked_node, compare_images, measure_first_job
from infra.targets.aws.rehearse.idle_cost import read_slept
from infra.targets.aws.rehearse.rehearsal import Rehearsal, choose_group, require_nodes
from infra.targets.aws.rehearse.rehearsed_slurm import REPLACED_S
from infra.targets.aws.spec import region_of

_SECOND = "second"
"""A group with the image of the first one. None of its nodes is launched, so that it takes no room on this machine."""


def refresh_images(rehearsal: Rehearsal) -> None:
    """Replace all machines with ones from baked images; the queue survives, and nodes install nothing."""
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    rehearsal.rehearsed.copy_group(group, _SECOND, count=None, min=0, max=1)
    rehearsal.up()
    unbaked, job = _measure_first_job(rehearsal, group, nodes)
    if cold_start := report_cold_start(rehearsal.cloud.instances, job, region_of(rehearsal.rehearsed.spec)):
        rehearsal.console.say(str(cold_start))
    held = rehearsal.slurm.submit(group, nodes, "hostname", "--hold")
    before = {name: rehearsal.cloud.instances.require(name).id for name in ("controller", *members(group, nodes))}
    rehearsal.refresh_images()
    if (state := rehearsal.slurm.read_state(held)) != "PENDING":
        raise Stop(f"the queue did not survive: job {held} is {state or 'gone'}", code=FAILED)
    _require_section_images(rehearsal)
    from_baked = _run_on_new_nodes(rehearsal, group, nodes)
    rehearsal.console.say(compare_images(unbaked, from_baked))
    baked = rehearsal.cloud.instances.images
    for node in map(rehearsal.cloud.instances.require, before):
        if node.id == before[node.name]:
            raise Stop(f"{node.name} ({node.id}) was not replaced", code=FAILED)
        if node.raw.image_id not in baked:
            raise Stop(f"{node.name} ({node.id}) does not start from a baked image", code=FAILED)
        if read_slept(rehearsal.cloud.instances, node):
            raise Stop(f"{node.name} has installed packages, although its image has all of them", code=FAILED)
    _forget_images(rehearsal)
    for image in list(baked):
        rehearsal.remove_image(image)


def _run_on_new_nodes(rehearsal: Rehearsal, group: str, nodes: int) -> FirstJob:
    """Run a job on the nodes that `up` has launched, or on ones that Slurm launches; both must be ready soon."""
    if rehearsal.rehearsed.spec.groups[group].count is not None:
        from_baked = _measure_first_job(rehearsal, group, nodes)[0]
        check_baked_node(from_baked)
        return from_baked
    for name in members(group, nodes):
        # Slurm launches a node again only when its time to shut down is over.
        rehearsal.slurm.wait_for_node(name, "is powered down", lambda node: node.powered_down, REPLACED_S)
    from_baked, job = _measure_first_job(rehearsal, group, nodes)
    start = report_cold_start(rehearsal.cloud.instances, job, region_of(rehearsal.rehearsed.spec))
    rehearsal.console.say(check_baked_start(start))
    return from_baked


def _measure_first_job(rehearsal: Rehearsal, group: str, nodes: int) -> tuple[FirstJob, str]:
    """Run a job on cold nodes and return how long the slowest took, and the number of the job."""
    submitted_at = time.monotonic()
    job = rehearsal.slurm.submit(group, nodes, "hostname")
    require_nodes(rehearsal.slurm.wait_for_end(job), nodes)
    # Not when the end was noticed: polling, the epilog and accounting come later, and are not part of the job.
    ended_at = time.monotonic() - rehearsal.slurm.read_output_age(job)
    used = [rehearsal.cloud.instances.require(name) for name in members(group, nodes)]
    return measure_first_job(rehearsal.cloud.instances, used, submitted_at, ended_at), job


def _require_section_images(rehearsal: Rehearsal) -> None:
    """Raise Stop unless the section names all images, as it does when the last group is replaced."""
    cluster = _read_cluster(rehearsal)["config"]["muster:cluster"]
    own = [name for name, fields in cluster["groups"].items() if "image" in fields]
    missing = [field for field in images.FIELDS.values() if field not in cluster["aws"]]
    if own or missing:
        raise Stop(f"groups {own} still have their own image, and aws has no {missing}", code=FAILED)


def _forget_images(rehearsal: Rehearsal) -> None:
    """Remove the images from the stack's file, so that they can be removed."""
    document = _read_cluster(rehearsal)
    for field in images.FIELDS.values():
        document["config"]["muster:cluster"]["aws"].pop(field, None)
    rehearsal.rehearsed.home.stack(rehearsal.rehearsed.name).file.write_text(yaml.safe_dump(document))


def _read_cluster(rehearsal: Rehearsal) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(rehearsal.rehearsed.home.stack(rehearsal.rehearsed.name).file.read_text())
    return document
