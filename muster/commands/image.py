"""`muster image`: build images from which nodes start with everything installed, use them, list and remove them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cluster.names import CONTROLLER
from cluster.spec import ClusterSpec
from cluster.spec.edit import set_value
from infra.engine import lock
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.resources.job_queue import JobQueue
from infra.targets.registry import target_of, targets
from infra.targets.target import Deployment, Images, MachineImage
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_running_stack, require_stack
from muster.commands.up import up
from muster.deployments import find_deployment
from muster.options import chosen_stack
from slurm.control.jobs import EMPTYING
from slurm.hostlist import hostlist

_POLL_S = 5.0


def build(name: str) -> None:
    """Build and test the images of a stack that is up, and print how to use them."""
    built = build_images(require_running_stack(name))
    screen.print_success(f"{len(built)} {'image' if len(built) == 1 else 'images'} built and tested")
    screen.out().print(describe_use(name, built), markup=False, highlight=False)


def build_images(stack: StackHome) -> Mapping[str, MachineImage]:
    """Build the images of a stack and return them by the property that names each."""
    target, deployment = find_images_target(stack)
    spec = require_valid_spec(stack, *examine_spec(stack, None))
    with lock.held(stack, "image build", wait=False, say=screen.say):
        return target.build_images(spec, stack, deployment, screen)


def refresh(name: str, *, force: bool) -> None:
    """Build images from the newest base, and replace all machines: compute nodes, then login, the controller last.

    With `force`, running jobs are put back into the queue; otherwise they end first.
    """
    stack = require_running_stack(name)
    target, deployment = find_images_target(stack)
    built = build_images(stack)
    for path, image in built.items():
        with _emptied_nodes(stack, path, force=force):
            screen.say(f"{path}: {image.id}")
            _write_image(stack, path, image.id)
            up(name, force=force, wait=False)
    permanent = [node.name for node in target_of(_read(stack)).plan(_read(stack)).nodes if node.role != "compute"]
    # The controller comes last: until then it hands the jobs of nodes that are replaced to others.
    for node in sorted(permanent, key=lambda name: name == CONTROLLER):
        with screen.status(f"replacing {node}"):
            target.end_machine(deployment, node)
        up(name, force=force, wait=False, preflight=False)
    screen.print_success(f"all machines of stack {name} start from {', '.join(i.id for i in built.values())}")
    if unnamed := list_unnamed(stack, target.list_images(deployment)):
        remove_command = format_command("image remove", name)
        screen.say(f"stack {name} no longer names {', '.join(unnamed)}; `{remove_command} IMAGE` ends the cost of one")


@contextmanager
def _emptied_nodes(stack: StackHome, path: str, *, force: bool) -> Iterator[None]:
    """Drain the compute nodes that start from an image, and wait until their jobs have ended or are requeued.

    Nodes that are not replaced, because something fails or is interrupted, run jobs again.
    """
    spec = _read(stack)
    target = target_of(spec)
    nodes = [node for node in target.nodes_concerned(path, spec) or () if node not in target.stable_nodes]
    queue = target.queue(Deployment(spec.name, stack.name, target.region(spec)))
    drained = queue.drain(nodes, EMPTYING) if nodes else ()
    try:
        if nodes:
            _wait_until_empty(queue, nodes, force=force)
        yield
    except BaseException:
        _resume(queue, drained)
        raise


def _resume(queue: JobQueue, drained: Sequence[str]) -> None:
    """Resume nodes; only warn on failure, so that the actual error stays visible."""
    try:
        if drained:
            queue.resume(drained)
    except ResourceError as problem:
        screen.say(
            f"warning: {hostlist(drained)} may still be drained: {rewrite_commands(str(problem), chosen_stack.get())}"
        )


def _wait_until_empty(queue: JobQueue, nodes: Sequence[str], *, force: bool) -> None:
    if force:
        queue.requeue(nodes)
        return
    with screen.status(f"draining {hostlist(nodes)}") as line:
        while jobs := queue.jobs(nodes):
            running = sorted({job for ids in jobs.values() for job in ids})
            line.update(f"draining {hostlist(nodes)}: waiting for jobs {', '.join(running)}")
            time.sleep(_POLL_S)


def _write_image(stack: StackHome, path: str, image: str) -> None:
    try:
        stack.file.write_text(set_value(stack.file.read_text(encoding="utf-8"), path, image), encoding="utf-8")
    except ValueError as unusual:
        fix = f"write `{path}: {image}` there, then `{format_command('up', stack.name)}`"
        raise Stop(f"{stack.file} could not be changed: {unusual}", fix, FAILED) from None


def _read(stack: StackHome) -> ClusterSpec:
    return require_valid_spec(stack, *examine_spec(stack, None))


def list_images(name: str) -> None:
    """Print the images that were built on a stack's cluster."""
    stack = require_stack(name)
    target, deployment = find_images_target(stack)
    with screen.status("looking for images"):
        images = target.list_images(deployment)
    if not images:
        screen.print_success(f"cluster {deployment.cluster} has no images")
        return
    table = screen.new_table("image", "nodes", "Slurm", "built from", "built")
    for image in images:
        table.add_row(image.id, image.purpose, image.slurm, image.base, image.built)
    screen.out().print(table)


def list_unnamed(stack: StackHome, images: Iterable[MachineImage]) -> list[str]:
    """Return the images that the stack file does not name; other stacks may."""
    text = stack.file.read_text(encoding="utf-8")
    return [image.id for image in images if image.id not in text]


def remove(name: str, image: str) -> None:
    """Remove an image that the stack does not use."""
    stack = require_stack(name)
    target, deployment = find_images_target(stack)
    if stack.file.exists() and image in stack.file.read_text(encoding="utf-8"):
        fix = f"name another image there, run `{format_command('up', name)}`, then remove it"
        raise Stop(f"image: {stack.file.name} names '{image}', so nodes start from it", fix, BAD_INPUT)
    with screen.status(f"removing {image}"):
        target.remove_image(deployment, image)
    screen.print_success(f"removed {image}")


def describe_use(name: str, built: Mapping[str, MachineImage]) -> str:
    """Return the lines of the stack file that make nodes start from images, and the command that applies them."""
    lines = [f"    {path}: {image.id}" for path, image in built.items()]
    return "\n".join(
        ["write into the stack file:", *lines, f"and run `{format_command('up', name)}`, which replaces compute nodes"]
    )


def find_images_target(stack: StackHome) -> tuple[Images, Deployment]:
    """Return the target of a stack and its deployment; raise Stop if nodes of that target do not use images."""
    target, deployment = find_deployment(stack)
    if not isinstance(target, Images):
        able = ", ".join(sorted(other.name for other in targets().values() if isinstance(other, Images)))
        what = f"stack {stack.name} has target {target.name}, for which no images are built; allowed: {able}"
        raise Stop(what, "nothing is missing there: `make setup` has built the image of its nodes", BAD_INPUT)
    target.check_access(deployment)
    return target, deployment
