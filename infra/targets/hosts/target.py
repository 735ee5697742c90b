"""The hosts target: machines that somebody already owns, reached over SSH.

This version has the spec, its rules and the pre-flight. Everything that would change a machine refuses: see README.md.
"""

# ruff: noqa: PLC0415, ARG002
# The SSH library is imported inside methods: every command imports every target's class. Methods that refuse use no
# argument.
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from cluster.spec.issue import warning
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.plan import BuildPlan
from infra.resources.error import ResourceError
from infra.targets.cost import Cost
from infra.targets.hosts.plan import plan_hosts
from infra.targets.hosts.spec import Hosts, hosts_section
from infra.targets.hosts.validate import validate_hosts
from infra.targets.mixins import Flight, Preflight
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from infra.resources.job_queue import JobQueue
    from infra.targets.facts import Facts

PREFLIGHT_ONLY = "target 'hosts' can only check machines in this version, not set them up; nothing was changed"
PREFLIGHT_FIX = "run `{check}`, which asks every host and lists what has to change on it first"


class HostsTarget(Target, Preflight):
    """The target whose nodes are machines that exist already."""

    name = "hosts"
    section = Hosts
    examples = ("hosts-full",)
    capabilities = Capabilities(gpus=frozenset({"real"}), storage=frozenset({"existing"}))
    setup_phases = ("apt", "venv", "pulumi")
    not_checked = "the hosts are not checked"
    refusal = "its hosts are not ready; nothing was changed on them"

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:
        return validate_hosts(spec)

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan_hosts(spec)

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def cost(self, spec: ClusterSpec) -> Cost:
        return Cost()

    def preflight(self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console) -> Flight | None:
        try:
            from infra.targets.hosts.preflight.report import describe_hosts, list_issues
            from infra.targets.hosts.preflight.survey import judge_answers, survey_hosts
        except ModuleNotFoundError as missing:
            fix = "run `make setup`, or install muster with the extra `infra`"
            what = f"the pre-flight needs the Python package {missing.name}, which is not installed"
            raise Stop(what, fix) from missing

        section = hosts_section(spec)
        if section is None:
            return None
        with console.status("asking the hosts over SSH") as status:
            answers = survey_hosts(spec, section, status.update)
        for line in describe_hosts({answer.host: answer.facts for answer in answers if answer.facts}):
            console.say(line)
        only = warning(
            "preflight_only", "target", PREFLIGHT_ONLY, "wait for a version that does, or use another target"
        )
        return Flight([*issues, *list_issues(judge_answers(spec, section, answers)), only])

    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        raise Stop(PREFLIGHT_ONLY, PREFLIGHT_FIX.format(check=format_command("check", stack.name)), BAD_INPUT)

    def build(self, plan: BuildPlan, context: Context) -> Built:
        raise _refuse()

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.resources.job_queue import NoQueue

        return NoQueue()

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:
        raise _refuse()

    def leftovers(self, deployment: Deployment) -> Leftovers:
        return Leftovers([])

    def remove(self, leftover: Leftover, until: float) -> None:
        raise _refuse()


def _refuse() -> ResourceError:
    return ResourceError("target", PREFLIGHT_ONLY, PREFLIGHT_FIX.format(check="make check"))
