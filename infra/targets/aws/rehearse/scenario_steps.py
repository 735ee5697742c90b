"""The steps of each scenario, from `up` to before `teardown`.

Each ends with `teardown` and a comparison of the account with what it had before. The times after which muster acts (a
node without a machine, a node that failed its checks) are not shortened, so some scenarios take several minutes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import get_args

from cluster.names import image as name_node_image
from cluster.names import members
from cluster.plural import format_count
from cluster.spec.model import SlurmRelease
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.cluster_end import wait_for_own_end
from infra.targets.aws.rehearse.cold_start import report_cold_start
from infra.targets.aws.rehearse.delays import LATE_LISTING_S, THROTTLED_SHARE
from infra.targets.aws.rehearse.disks import run_in
from infra.targets.aws.rehearse.idle_cost import report_idle_cost
from infra.targets.aws.rehearse.idle_nodes import release_idle_nodes
from infra.targets.aws.rehearse.interferences import refuse_launches, reject_some
from infra.targets.aws.rehearse.moto_errors import SHORTAGE
from infra.targets.aws.rehearse.policies_and_hooks import use_policies_and_hooks
from infra.targets.aws.rehearse.refreshed_images import refresh_images
from infra.targets.aws.rehearse.rehearsal import Rehearsal, Steps, choose_group, require_nodes
from infra.targets.aws.rehearse.rehearsed_slurm import REPLACED_S
from infra.targets.aws.rehearse.scenarios import PASSED
from infra.targets.aws.rehearse.slurm_releases import publish_releases
from infra.targets.aws.rehearse.spot_notices import take_spot_back, take_starting_spot_back
from infra.targets.aws.rehearse.stored_logs import check_stored_logs, wait_for_stored_logs
from infra.targets.aws.rehearse.timeline import PHASE
from infra.targets.aws.rehearse.training_job import STEPS as TRAINING_STEPS
from infra.targets.aws.rehearse.training_job import submit_training
from infra.targets.aws.spec import region_of
from slurm.control.config import SHOW_CONFIG, read_release
from slurm.control.nodes import update_nodes
from slurm.power.bring_up import COOLDOWN_S
from slurm.power.reasons import CAPACITY, HEALTH

# A controller that dies early does so within this time of the launch of nodes, which takes about as long here.
_STARTING_S = 30.0
# A first attempt of a job waits for what is done to its nodes; a later one ends.
_WAIT_ONCE = """sh -c 'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then hostname; else sleep 1200; fi'"""


def run_job(rehearsal: Rehearsal) -> None:
    """Run `up` and a job."""
    _up_and_report(rehearsal)
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    if nodes:
        rehearsal.cloud.timeline.record(PHASE, "job")
        job = rehearsal.slurm.submit(group, nodes, "hostname")
        hosts = rehearsal.slurm.wait_for_end(job).split()
        rehearsal.console.say(f"the job ran on {', '.join(sorted(hosts))}")
        _report_cold_start(rehearsal, job)


def train(rehearsal: Rehearsal) -> None:
    """Run `up` and the bundled trainer."""
    _up_and_report(rehearsal)
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    job = submit_training(rehearsal.slurm, group, nodes, TRAINING_STEPS)
    job.wait_for_end()
    rehearsal.console.say(f"the trainer did all {TRAINING_STEPS} steps on {format_count(nodes, 'node')}")
    _report_cold_start(rehearsal, job.number)


def fail_controller_launch(rehearsal: Rehearsal) -> None:
    """Launch no controller at first."""
    rehearsal.cloud.moto.interfere = refuse_launches()
    rehearsal.fail_up(SHORTAGE, "again later to continue")
    rehearsal.cloud.moto.interfere = None
    run_job(rehearsal)


def fail_node_launches(rehearsal: Rehearsal) -> None:
    """Launch no node at first; the nodes show why, and start when there is capacity again."""
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    # Otherwise the launch is repeated for ten minutes before the nodes show anything.
    rehearsal.rehearsed.change_group(group, capacity={"retry_s": 0})
    rehearsal.up()
    rehearsal.cloud.moto.interfere = refuse_launches()
    job = rehearsal.slurm.submit(group, nodes, "hostname")
    rehearsal.slurm.wait_for_node(
        f"{group}-1", f"has a reason {CAPACITY!r}", lambda node: node.reason.startswith(CAPACITY), REPLACED_S
    )
    rehearsal.cloud.instances.clock.wait("capacity shortage", group)
    rehearsal.cloud.moto.interfere = None
    rehearsal.slurm.wait_for_end(job, longer_s=COOLDOWN_S + REPLACED_S)


def refuse_spot(rehearsal: Rehearsal) -> None:
    """Offer no spot instance; the fallback is bought instead."""
    rehearsal.cloud.moto.interfere = refuse_launches(market="spot")
    run_job(rehearsal)
    launches = [call.params for call in rehearsal.cloud.moto.of("RunInstances") if call.status < 400]  # noqa: PLR2004  # HTTP
    if any("InstanceMarketOptions.MarketType" in params for params in launches):
        raise Stop("a spot instance was launched, although there was no capacity", code=FAILED)


def lose_node(rehearsal: Rehearsal) -> None:
    """Lose the machine of a node while a job runs on it."""
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    job = rehearsal.slurm.submit(group, nodes, _WAIT_ONCE)
    rehearsal.slurm.wait_for_state(job, "RUNNING")
    lost = rehearsal.cloud.instances.require(f"{group}-1")
    wait_for_stored_logs(rehearsal, lost)
    rehearsal.cloud.instances.lose(lost.id)
    require_nodes(rehearsal.slurm.wait_for_end(job, longer_s=REPLACED_S), nodes)
    check_stored_logs(rehearsal, lost)


def fail_prolog(rehearsal: Rehearsal) -> None:
    """Break the GPU of an idle node: the next job must not run there before the node has rebooted, which mends it."""
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    rehearsal.run_job(group, nodes)
    broken = rehearsal.cloud.instances.require(f"{group}-1")
    earlier = len(rehearsal.cloud.timeline.events)
    run_in(rehearsal.cloud.instances.container(broken.id), "printf '#!/bin/sh\\nexit 9\\n' >/usr/bin/nvidia-smi")
    job = rehearsal.slurm.submit(group, nodes, "hostname")
    rehearsal.slurm.wait_for_node(
        f"{group}-1", f"has a reason {HEALTH!r}", lambda node: node.reason.startswith(HEALTH), REPLACED_S
    )
    require_nodes(rehearsal.slurm.wait_for_end(job, longer_s=REPLACED_S), nodes)
    if (f"{group}-1", "restarts") not in [
        (event.subject, event.what) for event in rehearsal.cloud.timeline.events[earlier:]
    ]:
        raise Stop(f"the machine with the broken GPU, {broken.id}, did not reboot", code=FAILED)
    if broken.is_ending:
        raise Stop(f"{broken.id} was replaced although it is healthy after its reboot", code=FAILED)


def lose_controller(rehearsal: Rehearsal) -> None:
    """Lose the controller while one job runs and another waits; `up` replaces it, and both jobs complete."""
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    running = rehearsal.slurm.submit(group, nodes, "sh -c 'until [ -e go ]; do sleep 1; done; hostname'")
    waiting = rehearsal.slurm.submit(group, nodes, "hostname", f"--dependency=afterok:{running}")
    rehearsal.slurm.wait_for_step(running)
    machines = [rehearsal.cloud.instances.require(f"{group}-{number + 1}").id for number in range(nodes)]
    rehearsal.slurm.wait_until_saved(running)
    rehearsal.cloud.instances.lose(rehearsal.cloud.instances.require("controller").id)
    rehearsal.up()
    states = {job: rehearsal.slurm.read_state(job) for job in (running, waiting)}
    if states != {running: "RUNNING", waiting: "PENDING"}:
        raise Stop(f"the queue did not survive: {states}", code=FAILED)
    rehearsal.slurm.run(f"touch ~{rehearsal.slurm.user}/go")
    for job in (running, waiting):
        require_nodes(rehearsal.slurm.wait_for_end(job), nodes)
    after = [rehearsal.cloud.instances.require(f"{group}-{number + 1}").id for number in range(nodes)]
    if after != machines:
        raise Stop(f"the nodes were replaced with the controller: {machines} became {after}", code=FAILED)


def lose_controller_early(rehearsal: Rehearsal) -> None:
    """Lose the controller at a drawn moment while the nodes of a job start; `up` replaces it, and the job runs."""
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    instances, slurm = rehearsal.cloud.instances, rehearsal.slurm
    job = slurm.submit(group, nodes, "hostname")
    slurm.wait_until_saved(job)
    draws = random.Random(f"{instances.clock.seed} controller")  # noqa: S311  # no secret: a seed must repeat it
    slurm.wait_while(job, "CONFIGURING", draws.uniform(0, _STARTING_S))
    if slurm.read_state(job) != "CONFIGURING":
        # Its srun may not have created its step yet, and fails if it finds no controller for half a minute.
        slurm.wait_for_end(job)
    instances.lose(rehearsal.cloud.instances.require("controller").id)
    rehearsal.up()
    require_nodes(slurm.wait_for_end(job, longer_s=REPLACED_S), nodes)
    names = [instance.name for instance in instances.by_id.values() if not instance.is_ending]
    if len(names) != len(set(names)):
        raise Stop(f"a node has two machines: {', '.join(sorted(names))}", code=FAILED)


def resize(rehearsal: Rehearsal) -> None:
    """Add a node to the group of a cluster that is in use, run a job on all nodes, and remove it again."""
    run_job(rehearsal)
    group, _ = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    count, most = rehearsal.rehearsed.spec.groups[group].count, rehearsal.rehearsed.spec.groups[group].max
    size = count or most or 0
    for nodes in (size + 1, size):
        rehearsal.rehearsed.change_group(group, **{"count" if count else "max": nodes})
        rehearsal.up()
        require_nodes(rehearsal.run_job(group, nodes), nodes)


def upgrade(rehearsal: Rehearsal) -> None:
    """Install another release of Slurm under a running job, launch a node with it, and go back."""
    old, new = get_args(SlurmRelease)[-2:]
    instances, slurm = rehearsal.cloud.instances, rehearsal.slurm
    instances.slurm_packages = publish_releases(instances.site.cluster, instances.site.labels)
    instances.node_image = name_node_image(old)
    rehearsal.rehearsed.change_section("software", slurm=old)
    rehearsal.up()
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    running = slurm.submit(group, nodes, "sh -c 'until [ -e go ]; do sleep 1; done; hostname'", "--no-requeue")
    waiting = slurm.submit(group, nodes, "hostname", f"--dependency=afterok:{running}")
    held = slurm.submit(group, nodes, "hostname", "--hold")
    slurm.wait_for_state(running, "RUNNING")
    machines = [rehearsal.cloud.instances.require(f"{group}-{number + 1}").id for number in range(nodes)]
    rehearsal.upgrade("--to", new)
    _require_release(rehearsal, group, nodes, new)
    states = {job: slurm.read_state(job) for job in (running, waiting, held)}
    if states != {running: "RUNNING", waiting: "PENDING", held: "PENDING"}:
        raise Stop(f"the queue did not survive: {states}", code=FAILED)
    slurm.run(f"touch ~{slurm.user}/go")
    for job in (running, waiting):
        require_nodes(slurm.wait_for_end(job), nodes)
    _launch_again(rehearsal, f"{group}-1", machines[0])
    require_nodes(rehearsal.run_job(group, nodes), nodes)
    _require_release(rehearsal, group, nodes, new)
    rehearsal.upgrade("--back")
    _require_release(rehearsal, group, nodes, old)
    # To the restored queue, jobs that ended since the backup are still running or waiting.
    slurm.run(f"scancel {running} {waiting} {held} || true")
    require_nodes(rehearsal.run_job(group, nodes), nodes)


def throttle(rehearsal: Rehearsal) -> None:
    """Reject a share of all calls, of muster and of the machines."""
    rehearsal.cloud.moto.interfere = reject_some(THROTTLED_SHARE, rehearsal.cloud.instances.clock.seed)
    run_job(rehearsal)


def list_late(rehearsal: Rehearsal) -> None:
    """List new instances late: no machine may be launched twice or taken for lost."""
    rehearsal.cloud.instances.listing_s = LATE_LISTING_S
    run_job(rehearsal)
    launched = sorted(instance.name for instance in rehearsal.cloud.instances.by_id.values())
    if len(launched) != len(set(launched)):
        raise Stop(f"a machine was launched twice: {', '.join(launched)}", code=FAILED)


STEPS: Mapping[str, Steps] = {
    "job": run_job,
    "training": train,
    "no-capacity-controller": fail_controller_launch,
    "no-capacity-nodes": fail_node_launches,
    "no-spot": refuse_spot,
    "idle": release_idle_nodes,
    "dead-node": lose_node,
    "spot-notice": take_spot_back,
    "spot-notice-early": take_starting_spot_back,
    "failed-prolog": fail_prolog,
    "dead-controller": lose_controller,
    "dead-controller-early": lose_controller_early,
    "resize": resize,
    "upgrade": upgrade,
    "image-refresh": refresh_images,
    "hooks": use_policies_and_hooks,
    "end": wait_for_own_end,
    "throttling": throttle,
    "late-listing": list_late,
}
"""The steps of every scenario in scenarios.py, by its name."""


def combine_steps(names: Sequence[str]) -> Steps:
    """Return the steps of scenarios that run one after the other on one cluster."""

    def run(rehearsal: Rehearsal) -> None:
        for name in names:
            STEPS[name](rehearsal)
            if len(names) > 1:
                rehearsal.console.say(f"{PASSED}{name}")

    return run


def _up_and_report(rehearsal: Rehearsal) -> None:
    rehearsal.up()
    if line := report_idle_cost(rehearsal.cloud.instances, region_of(rehearsal.rehearsed.spec)):
        rehearsal.console.say(line)


def _report_cold_start(rehearsal: Rehearsal, job: str) -> None:
    region = region_of(rehearsal.rehearsed.spec)
    if cold_start := report_cold_start(rehearsal.cloud.instances, job, region):
        rehearsal.console.say(str(cold_start))


def _require_release(rehearsal: Rehearsal, group: str, nodes: int, release: str) -> None:
    """Raise Stop if slurmctld or a node has another release."""
    versions = {name: rehearsal.slurm.read_node(name).version for name in members(group, nodes)}
    versions["controller"] = read_release(rehearsal.slurm.run(" ".join(SHOW_CONFIG)))
    if any(not f"{version}.".startswith(f"{release}.") for version in versions.values()):
        raise Stop(f"not every node has Slurm {release}: {versions}", code=FAILED)


def _launch_again(rehearsal: Rehearsal, name: str, machine: str) -> None:
    """Power a node down and wait until its machine is gone, so that the next job launches another one."""
    rehearsal.slurm.run(" ".join(update_nodes(name, "POWER_DOWN_FORCE")))
    rehearsal.slurm.wait_for_node(name, "is powered down", lambda node: node.powered_down, REPLACED_S)
    if not rehearsal.cloud.instances.by_id[machine].is_ending:
        raise Stop(f"{name} is powered down, but its machine {machine} still runs", code=FAILED)
