"""Every key in muster's slurm.conf is managed, refused or allowed in slurm.extra; a new key must be put in one list."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cluster.spec import ClusterSpec
from cluster.spec.fields import walk
from infra.targets.registry import spec_model
from infra.validate.managed_keys import MANAGED, REFUSED
from infra.validate.slurm_options import check_extra_keys

TEMPLATE = Path(__file__).parents[2] / "slurm" / "config" / "templates" / "slurm.conf.j2"
ALLOWED_IN_EXTRA = {
    "BatchStartTimeout",
    "HealthCheckInterval",
    "HealthCheckNodeState",
    "HealthCheckTimeout",
    "JobAcctGatherFrequency",
    "JobRequeue",
    "MessageTimeout",
    "MpiDefault",
    "PropagateResourceLimitsExcept",
    "ReconfigFlags",
    "ResumeRate",
    "ReturnToService",
    "SchedulerParameters",
    "SlurmctldTimeout",
    "SuspendRate",
    "SuspendTimeout",
    "TreeWidth",
    "UnkillableStepTimeout",
}


def test_written_keys_are_managed_refused_or_allowed() -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert written - set(MANAGED) - set(REFUSED) == ALLOWED_IN_EXTRA


def test_spec_fields_of_managed_keys_exist() -> None:
    assert {field for field in MANAGED.values() if field} <= {path for path, _ in walk(spec_model())}


@pytest.mark.parametrize("key", [*REFUSED, "prolog", "PLUGINDIR"])
def test_whoever_edits_a_stack_gets_no_program_run_as_root(key: str) -> None:
    extra = {"extra": {key: "/shared/home/eve/root.sh"}}
    spec = ClusterSpec.model_validate({"name": "toy", "target": "local", "groups": {"gpu": {}}, "slurm": extra})
    (issue,) = check_extra_keys(spec)
    assert (issue.code, issue.level) == ("extra_refused", "error")
    assert "/shared/home/eve/root.sh" in issue.message


def test_no_key_is_in_two_lists() -> None:
    assert not set(MANAGED) & set(REFUSED)


# slurm.conf(5) names all of these as paths of programs, or of code that a daemon loads.
@pytest.mark.parametrize("pattern", ["prog", "prolog", "epilog", "plugstack", "plugindir"])
def test_keys_of_programs_that_muster_writes_are_out_of_reach(pattern: str) -> None:
    written = set(re.findall(r"^([A-Z]\w+)=", TEMPLATE.read_text(), flags=re.MULTILINE))
    assert {key for key in written if pattern in key.lower()} <= {*MANAGED, *REFUSED}
