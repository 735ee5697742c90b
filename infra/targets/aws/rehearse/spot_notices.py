"""Scenarios of a rehearsal in which EC2 takes a spot instance back: under a training job, or before it starts."""

from __future__ import annotations

import random
import time

from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.instance import Instance
from infra.targets.aws.rehearse.instances import SPOT_NOTICE_S
from infra.targets.aws.rehearse.rehearsal import Rehearsal, choose_group
from infra.targets.aws.rehearse.rehearsed_slurm import REPLACED_S, limit_job_s
from infra.targets.aws.rehearse.training_job import ENDLESS, STEPS, TrainingJob, check_save, submit_training
from slurm.control.nodes import NodeState
from slurm.power.interruption import STARTING_S
from slurm.power.reasons import TAKEN_BACK

# An early notice comes within this time of the first line of user data; the set-up takes longer here.
_SET_UP_S = 15.0
# How long a node that runs slurmd may take to be drained, on a machine with other work.
_DRAINED_S = 20.0


def take_spot_back(rehearsal: Rehearsal) -> None:
    """Announce the end of a spot instance under a training job."""
    job, name = _train_on_spot(rehearsal, ENDLESS)
    job.wait_for_event("first_step")
    # A job that has only just started is not asked to save.
    time.sleep(STARTING_S)
    taken = rehearsal.cloud.instances.require(name)
    noticed_at = _announce_end(rehearsal, taken)
    saved = job.wait_for_event("ended")
    rehearsal.console.say(f"the trainer had saved {saved['time'] - noticed_at:.0f} s after the notice")
    loaded = job.wait_for_event("loaded", longer_s=REPLACED_S)
    check_save(saved, loaded, noticed_at, SPOT_NOTICE_S)
    _require_other_machine(rehearsal, taken)
    job.stop()
    job.wait_for_event("ended", number=2)


def take_starting_spot_back(rehearsal: Rehearsal) -> None:
    """Announce the end of a spot instance at a drawn moment of its set-up, while a training job waits for it."""
    job, name = _train_on_spot(rehearsal, STEPS)
    instances, slurm = rehearsal.cloud.instances, rehearsal.slurm
    limit_s = limit_job_s(instances.clock.speed)
    taken = instances.wait_for_user_data(name, limit_s)
    draws = random.Random(f"{instances.clock.seed} spot notice")  # noqa: S311  # no secret: a seed must repeat it
    slurm.wait_while(job.number, "CONFIGURING", draws.uniform(0, _SET_UP_S))
    if (state := slurm.read_state(job.number)) != "CONFIGURING":
        raise Stop(f"the notice comes too late: job {job.number} is already {state or 'gone'}", code=FAILED)
    noticed_at = _announce_end(rehearsal, taken)
    # No command of Slurm works on the machine before its slurmd has started.
    slurm.wait_for_node(name, "is up or drained", lambda node: not node.powering_up or _is_noticed(node), SPOT_NOTICE_S)
    slurm.wait_for_node(name, f"has a reason {TAKEN_BACK!r}", _is_noticed, _DRAINED_S)
    rehearsal.console.say(f"{name} was drained {time.time() - noticed_at:.0f} s after the notice")
    job.wait_for_end(longer_s=REPLACED_S)
    _require_other_machine(rehearsal, taken)


def _train_on_spot(rehearsal: Rehearsal, steps: int) -> tuple[TrainingJob, str]:
    """Run `up` with a group of spot instances, submit a training job, and return it and the node to take back."""
    group, nodes = choose_group(rehearsal.rehearsed.spec, rehearsal.rehearsed.nodes)
    rehearsal.rehearsed.change_group(group, capacity={"kind": "spot"})
    rehearsal.up()
    return submit_training(rehearsal.slurm, group, nodes, steps), f"{group}-1"


def _announce_end(rehearsal: Rehearsal, taken: Instance) -> float:
    """Announce the end of a spot instance and return when that was."""
    if not taken.is_spot:
        raise Stop(f"{taken.name} is not a spot instance", code=FAILED)
    rehearsal.cloud.instances.take_back(taken.id)
    return time.time()


def _is_noticed(node: NodeState) -> bool:
    """Return whether a node has been drained because of a notice; a sweep right after it powers the node down."""
    return node.reason.startswith(TAKEN_BACK) or node.powered_off


def _require_other_machine(rehearsal: Rehearsal, taken: Instance) -> None:
    if rehearsal.cloud.instances.require(taken.name).id == taken.id:
        raise Stop(f"{taken.name} still has the machine that was taken back", code=FAILED)
