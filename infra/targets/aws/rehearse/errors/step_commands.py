"""`up`, a change of sizes and `teardown`, in which every step of Pulumi meets all errors before it succeeds."""

from __future__ import annotations

from cluster.plural import format_count
from infra.engine.dynamic_provider import load_dynamic_provider
from infra.engine.stop import FAILED, Stop
from infra.targets.aws.rehearse.errors.call_sites import read_sites
from infra.targets.aws.rehearse.errors.coverage import Coverage
from infra.targets.aws.rehearse.errors.engine_commands import COMMANDS, RESIZE, TEARDOWN, UNCHANGED, UP
from infra.targets.aws.rehearse.errors.failing_cluster import FailingCluster, use_environment
from infra.targets.aws.rehearse.errors.operation_runs import SWEEP, hasten
from infra.targets.aws.rehearse.errors.operations import SEARCH
from infra.targets.aws.rehearse.errors.repeating_provider import RepeatingProvider, serve_provider
from infra.targets.aws.rehearse.errors.share import Share
from infra.targets.aws.rehearse.errors.step_errors import StepErrors
from infra.targets.aws.rehearse.plugin.serve import Provider
from infra.targets.target import Console

_OUTSIDE = ("jobs", SEARCH, SWEEP)
"""Operations that these commands do outside the steps of Pulumi; some of their calls are made in steps, too."""


def is_step_open(coverage: Coverage, share: Share) -> bool:
    """Return whether a call that can only be made in a step has not met all errors."""
    outside = {site for name in _OUTSIDE for site in read_sites()[name]}
    return any(pair.site not in outside for name in COMMANDS for pair in coverage.list_open(name, share.codes))


def cover_steps(cluster: FailingCluster, coverage: Coverage, share: Share, console: Console) -> None:
    """Create, change and remove the cluster; what cannot go on is a problem.

    What the engine itself does after an error does not depend on the code, which it only prints: the cycles show it.
    """
    errors = StepErrors(coverage, share)
    with (
        use_environment(cluster),
        hasten(cluster.moto),
        serve_provider(RepeatingProvider(Provider(), errors)) as aws,
        serve_provider(RepeatingProvider(load_dynamic_provider(), errors)) as own,
    ):
        cluster.providers |= {"aws": aws, "pulumi-python": own}
        try:
            _run(cluster, UP, errors, coverage, console)
            if coverage.list_open(RESIZE, share.codes):
                cluster.add_nodes(1)
                _run(cluster, RESIZE, errors, coverage, console)
            _run(cluster, TEARDOWN, errors, coverage, console)
            cluster.require_nothing_left("after `muster teardown` with errors at the steps of Pulumi")
            coverage.confirm()
        except Stop as stop:
            coverage.pending.clear()
            coverage.problems.append(f"steps of Pulumi: {stop.what}")
        finally:
            cluster.providers.clear()


def _run(cluster: FailingCluster, name: str, errors: StepErrors, coverage: Coverage, console: Console) -> None:
    """Run a command, which must succeed, because its steps are repeated; a second `up` has nothing to change."""
    errors.begin(name)
    with console.status(f"{name}, with errors at the steps of Pulumi"):
        code, output = cluster.run(*COMMANDS[name], errors=errors)
    console.say(f"{name}: {format_count(len(coverage.pending), 'error')} at the steps of Pulumi")
    if code:
        raise Stop(f"`muster {name}` failed, although its steps are repeated:\n{output}", code=FAILED)
    if name == TEARDOWN:
        return
    code, output = cluster.run(*COMMANDS[UP])
    if code or UNCHANGED not in output:
        raise Stop(f"`muster up` is not complete after errors at the steps of Pulumi:\n{output}", code=FAILED)
    coverage.confirm()
