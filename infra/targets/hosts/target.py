"""The hosts target: machines that somebody already owns, reached over SSH, adopted for a cluster and given back."""

# ruff: noqa: PLC0415
# Pulumi's and the SSH library are imported inside methods: every command imports every target's class.
from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cluster.inventory import Inventory
from cluster.spec import ClusterSpec, Issue
from infra.engine.stop import Stop
from infra.home import Home, StackHome
from infra.plan import BuildPlan
from infra.targets.cost import Cost
from infra.targets.hosts.assign import list_concerned
from infra.targets.hosts.plan import plan_hosts
from infra.targets.hosts.spec import Hosts, hosts_section
from infra.targets.hosts.validate import find_moved_hosts, find_unreachable_logins, validate_hosts
from infra.targets.mixins import Flight, Preflight
from infra.targets.target import Built, Capabilities, Console, Context, Deployment, Leftover, Leftovers, Target

if TYPE_CHECKING:
    from infra.resources.job_queue import JobQueue
    from infra.targets.facts import Facts
    from infra.targets.hosts.preflight.facts import MachineFacts


class HostsTarget(Target, Preflight):
    """The target whose nodes are machines that exist already."""

    name = "hosts"
    section = Hosts
    examples = ("hosts-full",)
    capabilities = Capabilities(
        fabrics=frozenset({"tcp", "infiniband", "roce"}),
        gpus=frozenset({"real"}),
        storage=frozenset({"existing", "nfs"}),
    )
    setup_phases = ("apt", "venv", "pulumi")
    removal_words = "(each host is given back as it was; shared files stay)"
    not_checked = "the hosts are not checked"
    refusal = "its hosts are not ready; nothing was changed on them"

    def validate(self, spec: ClusterSpec, root: Path | None = None) -> Iterable[Issue]:  # noqa: ARG002  # the protocol has it
        return validate_hosts(spec)

    def change_issues(self, old: ClusterSpec, new: ClusterSpec) -> Iterable[Issue]:
        return find_moved_hosts(old, new)

    def nodes_concerned(self, path: str, spec: ClusterSpec) -> Sequence[str] | None:
        section = hosts_section(spec)
        return list_concerned(section, path) if section and path.startswith(f"{self.name}.") else None

    def plan(self, spec: ClusterSpec) -> BuildPlan:
        return plan_hosts(spec)

    def resolve(self, spec: ClusterSpec) -> ClusterSpec:
        return spec

    def cost(self, spec: ClusterSpec) -> Cost:  # noqa: ARG002  # the machines cost the same whatever runs on them
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
        problems = judge_answers(spec, section, answers, partial(_is_ours, spec.name, stack))
        return Flight([*issues, *find_unreachable_logins(section), *list_issues(problems)])

    def clear(
        self, spec: ClusterSpec, issues: list[Issue], stack: StackHome, console: Console, *, full: bool
    ) -> Flight:
        section = hosts_section(spec)
        if section is None or any(issue.level == "error" for issue in issues):
            return Flight(issues)
        flight = self.preflight(spec, issues, stack, console) if full else None
        return flight or Flight([*issues, *find_unreachable_logins(section)])

    def build(self, plan: BuildPlan, context: Context) -> Built:
        from infra.resources.start import start_slurm
        from infra.targets.hosts.build.cluster import HostsCluster

        section = hosts_section(context.spec)
        if section is None:
            raise ValueError("hosts: the section is missing, although the spec was validated")
        cluster = HostsCluster(plan, section, context)
        return Built(cluster.inventory, cluster.addresses, partial(start_slurm, cluster.inventory, context))

    def deployment_in_state(self, stack: StackHome, spec: ClusterSpec | None) -> Deployment | None:
        from infra.targets.hosts.state import read_cluster

        cluster = read_cluster(stack.state)
        return self.deployment(stack, cluster, spec) if cluster else None

    def queue(self, deployment: Deployment) -> JobQueue:
        from infra.targets.hosts.queue import open_queue

        return open_queue(deployment)

    def facts(self, inventory: Inventory, stack: StackHome, deployment: Deployment) -> Facts:  # noqa: ARG002
        from infra.targets.hosts.facts import gather

        return gather(inventory, stack)

    def leftovers(self, deployment: Deployment) -> Leftovers:
        from infra.targets.hosts.leftovers import find_leftovers

        return find_leftovers(deployment)

    def remove(self, leftover: Leftover, until: float) -> None:  # noqa: ARG002  # the journal waits for daemons itself
        from infra.targets.hosts.leftovers import release_leftover

        release_leftover(leftover)

    def removal_notes(self, existed: Iterable[Leftover]) -> Sequence[str]:
        from infra.targets.hosts.receipts import describe_receipts

        home = Home.of(os.environ)
        hosts = dict.fromkeys((leftover.stack, leftover.name) for leftover in existed)
        return [line for stack, host in hosts for line in describe_receipts(home, stack, host)]


def _is_ours(cluster: str, stack: StackHome, facts: MachineFacts) -> bool:
    from infra.targets.hosts.claim import ClaimError, parse_claim
    from infra.targets.hosts.state import identify_owner

    try:
        claim = parse_claim(facts.claim)
    except ClaimError:
        return False
    return claim is not None and claim.is_of(identify_owner(cluster, stack))
