"""`muster upgrade`: change the release of Slurm on a running cluster; queue, accounting and running jobs are kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bootstrap.errors import BootstrapError
from bootstrap.sessions import Sessions
from bootstrap.transport.base import TransportError
from bootstrap.upgrade.drill import copy_controller, start_twin
from bootstrap.upgrade.execute import Upgrade, take_snapshot
from bootstrap.upgrade.steps import PublishedPackages, Releases, UpgradeStep, plan_return, plan_upgrade
from cluster.inventory import Inventory
from cluster.spec import ClusterSpec
from cluster.spec.edit import set_release
from cluster.spec.model import SlurmRelease
from cluster.spec.stack_file import replace_stack_file
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.shell import read_inventory
from infra.targets.mixins import UpgradeNodes, Upgrades
from infra.targets.registry import parse_spec, target_of, targets
from infra.validate.update import changes
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_running_stack
from muster.commands.up import up
from slurm.control.snapshot import parse_snapshot
from slurm.hostlist import hostlist
from slurm.upgrade_check import describe_snapshot, find_differences

RELEASES: tuple[str, ...] = get_args(SlurmRelease)
NEWEST = RELEASES[-1]
# The resource whose state holds the spec of the running cluster.
_GUARD = "ChangeGuard"


@dataclass(frozen=True)
class Cluster:
    """A running cluster, as its last `up` left it, and the target that can upgrade it."""

    stack: StackHome
    spec: ClusterSpec
    inventory: Inventory
    target: Upgrades

    def reach_nodes(self) -> UpgradeNodes:
        """Return the nodes that run now."""
        return self.target.reach_nodes(self.spec, self.stack, self.inventory)


def upgrade(name: str, *, to: str, dry_run: bool = False, drill: bool | None = None) -> None:
    """Upgrade a running stack to a release, after a drill on a twin of the controller.

    `dry_run` only prints the steps; `drill` only tries them on the twin, or with False skips that.
    """
    check_release_name(to)
    cluster = _read_cluster(name)
    old = cluster.spec.software.slurm
    if not require_later(old, to):
        screen.print_success(f"nothing to do: stack {name} has Slurm {to} already")
        return
    _require_no_other_change(cluster, to)
    nodes = cluster.reach_nodes()
    steps = plan_upgrade(nodes.inventory, Releases(old, to))
    _print_steps(f"upgrade of stack {name} from Slurm {old} to {to}:", steps)
    if dry_run:
        return
    cluster.target.check_release(cluster.spec, cluster.stack, to)
    record = _record(cluster.stack, old)
    with lock.held(cluster.stack, "upgrade", wait=False, say=screen.say):
        pulumi.wait_for_others(cluster.stack, wait=False, say=screen.say)
        # A cluster whose upgrade was interrupted may have no running controller to copy.
        if drill or (drill is None and not record.exists()):
            _drill(cluster, nodes, to)
        if drill:
            return
        differences = _carry_out(cluster, nodes, old, to, record)
    _write_release(cluster.stack, to)
    up(name, force=False, wait=False, preflight=False, command="upgrade")
    if differences:
        lines = "\n".join(f"  {line}" for line in differences)
        what = f"stack {name} has Slurm {to}, but queue and accounting differ from before:\n{lines}"
        raise Stop(what, f"the backup of {old} is in {nodes.backups} on the controller", FAILED)
    screen.print_success(f"stack {name} has Slurm {to}; the backup of {old} is in {nodes.backups} on the controller")


def go_back(name: str, *, to: str) -> None:
    """Return a cluster to the backup that an upgrade took of an older release; what happened since is lost."""
    check_release_name(to)
    cluster = _read_cluster(name)
    if to == NEWEST:
        raise Stop(
            f"--to: {to} is the newest release; no upgrade has a backup of it", f"--to {RELEASES[-2]}", BAD_INPUT
        )
    _require_no_other_change(cluster, to)
    cluster.target.check_release(cluster.spec, cluster.stack, to)
    with lock.held(cluster.stack, "upgrade", wait=False, say=screen.say):
        packages = _publish(cluster, cluster.reach_nodes(), to)
        try:
            # Nodes of the newer release cannot join the restored controller.
            with cluster.target.hold_launches(cluster.spec, cluster.stack, keep_after_error=True):
                nodes = cluster.reach_nodes()
                steps = plan_return(nodes.inventory, Releases(NEWEST, to, packages, nodes.packaging, nodes.backups))
                with Sessions(nodes.connect) as sessions:
                    restoration = Upgrade(to, sessions, nodes.inventory.controller, nodes.is_gone)
                    restoration.execute_steps(steps, _show)
        except (BootstrapError, TransportError, ResourceError) as failure:
            raise Stop(rewrite_commands(str(failure), name), "remove the cause, then run it again", FAILED) from None
        _record(cluster.stack, to).unlink(missing_ok=True)
    _write_release(cluster.stack, to)
    up(name, force=False, wait=False, preflight=False, command="upgrade")
    screen.print_success(f"stack {name} has Slurm {to} again, with the queue and accounting of the backup")


def check_release_name(release: str) -> None:
    """Raise Stop if the release is not one that muster installs."""
    if release not in RELEASES:
        what = f"--to: '{release}' is not a release that muster installs; allowed: {', '.join(RELEASES)}"
        raise Stop(what, f"--to {NEWEST}", BAD_INPUT)


def require_later(old: str, new: str) -> bool:
    """Return whether there is something to upgrade; raise Stop for an older release."""
    if RELEASES.index(new) < RELEASES.index(old):
        what = f"--to: {new} is older than {old}, which runs; Slurm cannot go back to an older release"
        raise Stop(what, "create a new cluster, or restore the backup that an upgrade took with `--back`", BAD_INPUT)
    return new != old


def _read_cluster(name: str) -> Cluster:
    stack = require_running_stack(name)
    spec = parse_spec(read_spec_text(pulumi.resources(stack), name))
    target = target_of(spec)
    if not isinstance(target, Upgrades):
        able = ", ".join(sorted(other.name for other in targets().values() if isinstance(other, Upgrades)))
        what = f"stack {name} has target {target.name}, which cannot upgrade running nodes; allowed: {able}"
        raise Stop(what, "create a new cluster with the other release", BAD_INPUT)
    return Cluster(stack, spec, read_inventory(stack), target)


def read_spec_text(resources: list[dict[str, Any]], stack: str) -> str:
    """Return the spec of the running cluster as JSON, from the resources of its Pulumi state."""
    guards = [resource["inputs"] for resource in resources if resource["type"].endswith(_GUARD)]
    if not guards:
        raise Stop("the stack has no cluster yet", format_command("up", stack))
    return str(guards[0]["spec"])


def _require_no_other_change(cluster: Cluster, to: str) -> None:
    """Raise Stop if the stack file differs from the cluster in more than the release: `up` applies it afterwards."""
    name = cluster.stack.name
    written = require_valid_spec(cluster.stack, *examine_spec(cluster.stack, None))
    others = [change.path for change in changes(cluster.spec, written) if change.policy != "upgrade"]
    if others:
        what = f"{cluster.stack.file.name} has changes that the cluster does not have: {', '.join(others)}"
        raise Stop(what, f"apply them with `{format_command('up', name)}`, or undo them, then upgrade", BAD_INPUT)
    if written.software.slurm not in (cluster.spec.software.slurm, to):
        what = f"software.slurm is {written.software.slurm} in {cluster.stack.file.name}, but --to is {to}"
        raise Stop(what, f'write `slurm: "{cluster.spec.software.slurm}"`', BAD_INPUT)


def _record(stack: StackHome, old: str) -> Path:
    """Return the file that keeps the snapshot from before an upgrade until it is complete."""
    return stack.folder / f"upgrade-from-{old}.txt"


def _print_steps(title: str, steps: tuple[UpgradeStep, ...]) -> None:
    screen.out().print(title)
    table = screen.new_table("step", "nodes", "what")
    for number, step in enumerate(steps, 1):
        table.add_row(str(number), hostlist([node.name for node in step.nodes]), step.title)
    screen.out().print(table)


def _drill(cluster: Cluster, nodes: UpgradeNodes, to: str) -> None:
    """Try the upgrade on a twin; raise Stop, with nothing changed, if it fails or loses anything."""
    cluster.target.check_twin(to)
    controller, name, began = nodes.inventory.controller, cluster.stack.name, time.monotonic()
    try:
        with (
            screen.status(f"drill: Slurm {to} recovers a copy of queue and accounting"),
            Sessions(nodes.connect) as sessions,
        ):
            before = take_snapshot(sessions, controller)
            archive = copy_controller(sessions.open(controller), controller)
            with cluster.target.open_twin(cluster.spec, name, controller, to) as twin:
                after = start_twin(twin, controller, archive)
        differences = find_differences(parse_snapshot(before), parse_snapshot(after))
    except (BootstrapError, TransportError, ValueError) as failure:
        what = f"the drill failed, and the cluster is unchanged: {rewrite_commands(str(failure), name)}"
        raise Stop(what, f"check the cluster with `{format_command('status', name)}`", FAILED) from None
    if differences:
        what = "the drill lost something, and the cluster is unchanged:\n" + "\n".join(f"  {d}" for d in differences)
        raise Stop(what, "report it with these lines", FAILED)
    contents = describe_snapshot(parse_snapshot(before))
    screen.print_success(
        f"drill: Slurm {to} recovered everything on a twin ({contents}) in {time.monotonic() - began:.0f} s"
    )


def _publish(cluster: Cluster, nodes: UpgradeNodes, release: str) -> PublishedPackages:
    name = cluster.stack.name
    try:
        with screen.status(f"packages of Slurm {release}: built or copied, which may take minutes"):
            return cluster.target.publish_packages(cluster.spec, cluster.stack, nodes, release)
    except TransportError as failure:
        what = f"the controller did not publish packages of Slurm {release}: {rewrite_commands(str(failure), name)}"
        fix = f"check the cluster with `{format_command('status', name)}`, then run it again; nothing has changed"
        raise Stop(what, fix, FAILED) from None


def _carry_out(cluster: Cluster, nodes: UpgradeNodes, old: str, to: str, record: Path) -> list[str]:
    """Upgrade the nodes and return what differs afterwards; `record` keeps the snapshot from before until then."""
    packages = _publish(cluster, nodes, to)
    done: list[UpgradeStep] = []

    @contextmanager
    def watch(step: UpgradeStep) -> Iterator[None]:
        with _show(step):
            yield
        done.append(step)

    with cluster.target.hold_launches(cluster.spec, cluster.stack):
        # Others may run now: the build of the packages takes minutes.
        nodes = cluster.reach_nodes()
        controller = nodes.inventory.controller
        steps = plan_upgrade(nodes.inventory, Releases(old, to, packages, nodes.packaging, nodes.backups))
        try:
            with Sessions(nodes.connect) as sessions:
                # The snapshot of the first attempt is the one to compare with.
                if not record.exists():
                    record.write_text(take_snapshot(sessions, controller))
                Upgrade(to, sessions, controller, nodes.is_gone).execute_steps(steps, watch)
                after = take_snapshot(sessions, controller)
        except (BootstrapError, TransportError, ResourceError) as failure:
            raise describe_failure(cluster.stack.name, str(failure), steps, len(done)) from None
    before = record.read_text()
    record.unlink()
    differences = find_differences(parse_snapshot(before), parse_snapshot(after))
    if not differences:
        screen.print_success(f"queue and accounting are complete: {describe_snapshot(parse_snapshot(after))}")
    return differences


def describe_failure(name: str, failure: str, steps: tuple[UpgradeStep, ...], done: int) -> Stop:
    """Return the error for an upgrade that stopped after `done` steps."""
    titles = [_describe(step) for step in steps]
    lines = [f"the upgrade stopped: {rewrite_commands(failure, name)}"]
    lines += [f"  done: {title}" for title in titles[:done]] + [
        f"  failed: {titles[done]}" if done < len(titles) else ""
    ]
    again, back = format_command("upgrade", name), format_command("upgrade", name, "BACK=1")
    fix = f"remove the cause and continue with `{again}`, or go back with `{back}`, which loses what happened since"
    return Stop("\n".join(filter(None, lines)), fix, FAILED)


@contextmanager
def _show(step: UpgradeStep) -> Iterator[None]:
    began, title = time.monotonic(), _describe(step)
    with screen.status(title):
        yield
    screen.say(f"{title} ({time.monotonic() - began:.1f} s)")


def _describe(step: UpgradeStep) -> str:
    return f"{hostlist([node.name for node in step.nodes])}: {step.title}"


def _write_release(stack: StackHome, release: str) -> None:
    try:
        replace_stack_file(stack.file, set_release(stack.file.read_text(encoding="utf-8"), release))
    except (OSError, ValueError) as problem:
        what = f"the cluster has Slurm {release}, but {stack.file} could not be changed: {problem}"
        fix = f'write `slurm: "{release}"` under `software` there, then `{format_command("up", stack.name)}`'
        raise Stop(what, fix, FAILED) from None
