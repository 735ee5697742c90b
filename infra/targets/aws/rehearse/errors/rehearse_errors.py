"""Rehearse a stack with every error of AWS at every call, and count which pairs of both were covered."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.plural import format_count
from infra.engine.stop import FAILED, Stop
from infra.home import StackHome
from infra.targets.aws.rehearse.errors.call_sites import read_sites, render_sites
from infra.targets.aws.rehearse.errors.coverage import Coverage, restrict_sites
from infra.targets.aws.rehearse.errors.engine_commands import COMMANDS, TEARDOWN, UP, Cycle, EngineCycle, plan_cycles
from infra.targets.aws.rehearse.errors.failing_cluster import (
    FailingCluster,
    locate_home,
    open_failing_cluster,
    use_environment,
)
from infra.targets.aws.rehearse.errors.injection import Injection
from infra.targets.aws.rehearse.errors.operation_runs import SWEEP, cover_operation, cover_sweep
from infra.targets.aws.rehearse.errors.operations import OPERATIONS, Subject
from infra.targets.aws.rehearse.errors.record import Record, locate_record
from infra.targets.aws.rehearse.errors.share import Share
from infra.targets.aws.rehearse.errors.step_commands import cover_steps, is_step_open
from infra.targets.aws.rehearse.rehearsal import interrupt_on_signals, lock_rehearsal
from infra.targets.error_coverage import ErrorCoverage
from infra.targets.target import Console

OPERATION_NAMES = (*(operation.name for operation in OPERATIONS), SWEEP)


def rehearse_errors(stack: StackHome, share: Share, console: Console) -> ErrorCoverage:
    """Cover a share of all pairs; raise Stop if a command fails without an error of AWS."""
    record, sites = locate_record(stack), restrict_sites(*share.commands)
    with lock_rehearsal(stack), interrupt_on_signals():
        coverage = Coverage(sites, record)
        if not share.is_over and _is_open(coverage, OPERATION_NAMES, share):
            with open_failing_cluster(stack) as cluster:
                cover_operations(cluster, coverage, share, console)
        if not share.is_over and is_step_open(coverage, share):
            with open_failing_cluster(stack) as cluster:
                cover_steps(cluster, coverage, share, console)
        for cycle in share.shuffle(plan_cycles(share.codes)):
            if not share.is_over and _is_open(coverage, COMMANDS, Share(cycle.codes)):
                # A cycle that cannot end leaves an account that is of no use to the next.
                with open_failing_cluster(stack) as cluster:
                    cover_engine(cluster, coverage, share, cycle, console)
        problems = (*coverage.problems, *check_list(stack, coverage))
        calls = _write_calls(record, share)
    counts = tuple(coverage.count(command, share.codes) for command in coverage.sites)
    return ErrorCoverage(counts, len(share.codes), calls, record.path, problems)


def cover_operations(cluster: FailingCluster, coverage: Coverage, share: Share, console: Console) -> None:
    """Create the cluster without errors, let every other command meet them, and remove the cluster without Pulumi.

    The removal comes last, so that the commands before it get half of the time. The cluster is left out if no chosen
    command needs it.
    """
    operations = [operation for operation in share.shuffle(OPERATIONS) if _is_open(coverage, (operation.name,), share)]
    sweeps = _is_open(coverage, (SWEEP,), share)
    needs_cluster = sweeps or UP in coverage.sites or any(operation.needs_cluster for operation in operations)
    if needs_cluster:
        with console.status("`muster up` without errors, for all commands that need a cluster"):
            _run(cluster, UP, coverage)
    with use_environment(cluster):
        subject = Subject(cluster)
        before_sweep = share.first_half if sweeps else share
        for operation in operations:
            if not before_sweep.is_over:
                before = len(coverage.outcomes)
                with console.status(operation.name) as line:
                    cover_operation(subject, operation, coverage, before_sweep, line.update)
                console.say(f"{operation.name}: {format_count(len(coverage.outcomes) - before, 'error')} at its calls")
        if sweeps and not share.is_over:
            before = len(coverage.outcomes)
            with console.status(SWEEP):
                cover_sweep(subject, coverage, share)
            console.say(f"{SWEEP}: {format_count(len(coverage.outcomes) - before, 'error')} at its calls")
    if needs_cluster:
        with console.status("`muster teardown` without errors"):
            _run(cluster, TEARDOWN, coverage)
            cluster.require_nothing_left("after all other commands")


def cover_engine(
    cluster: FailingCluster, coverage: Coverage, share: Share, cycle: Cycle, console: Console
) -> EngineCycle:
    """Create, change and remove the cluster while each call meets one error; what cannot go on is a problem.

    Return the cycle with the sites that have met an error.
    """
    engine = EngineCycle(cluster, coverage, share, cycle, console)
    try:
        engine.up()
        engine.resize()
        engine.teardown()
    except Stop as stop:
        coverage.pending.clear()
        coverage.problems.append(f"{cycle}: {stop.what}")
    return engine


def check_list(stack: StackHome, coverage: Coverage) -> list[str]:
    """Return the calls that the list does not have, and where the complete list is."""
    if not coverage.unlisted:
        return []
    listed = {(command, site) for command, sites in read_sites().items() for site in sites}
    path = locate_home(stack) / "call_sites.txt"
    path.write_text(render_sites(listed | set(coverage.unlisted)))
    calls = "; ".join(f"{command}: {site}" for command, site in coverage.unlisted)
    return [f"calls that the list of call sites does not have: {calls}; {path} has them"]


def _is_open(coverage: Coverage, commands: Iterable[str], share: Share) -> bool:
    return any(coverage.list_open(command, share.codes) for command in commands)


def _run(cluster: FailingCluster, name: str, coverage: Coverage) -> None:
    """Run a command without errors, and note what it calls: after an error, it may make other calls."""
    errors = Injection(lambda _site: "")
    code, output = cluster.run(*COMMANDS[name], errors=errors)
    coverage.trace(name, errors.called)
    if code:
        raise Stop(f"`muster {name}` failed without errors of AWS:\n{output}", code=FAILED)


def _write_calls(record: Record, share: Share) -> Path:
    """Write a line for each kind of call of all commands, next to the record."""
    path = record.path.with_name(record.path.name.replace("-covered.jsonl", "-calls.txt"))
    path.write_text("".join(f"{line}\n" for line in Coverage(read_sites(), record).render(share.codes)))
    return path
