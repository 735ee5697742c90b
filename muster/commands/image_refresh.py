"""`muster image refresh`: build images from the newest base and replace all machines, one group after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cluster.names import CONTROLLER
from cluster.spec import ClusterSpec
from cluster.spec.edit import remove_value, set_value
from cluster.spec.stack_file import replace_stack_file
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.home import StackHome
from infra.resources.error import ResourceError
from infra.resources.job_queue import JobQueue
from infra.targets.mixins import MachineImage, RefreshesImages
from infra.targets.registry import target_of, targets
from infra.targets.target import Deployment
from muster.commands import screen
from muster.commands.image import build_images, find_images_target, list_unused
from muster.commands.stack_spec import examine_spec, require_valid_spec
from muster.commands.stacks import require_running_stack
from muster.commands.up import up
from muster.options import chosen_stack
from slurm.control.jobs import EMPTYING
from slurm.hostlist import hostlist

_POLL_S = 5.0


@dataclass(frozen=True)
class Replacement:
    """One `up` of a refresh: the image, the property that names it from then on, and the group that it replaces."""

    image: str
    path: str
    group: str = ""
    """Empty if no compute node starts from the image."""
    obsolete: tuple[str, ...] = ()
    """Properties that name the image for single groups, and are not needed any more."""


def refresh(name: str, *, force: bool) -> None:
    """Build images from the newest base, and replace all machines: each group, then login, the controller last.

    With `force`, running jobs are put back into the queue; otherwise they end first.
    """
    stack = require_running_stack(name)
    target, deployment = find_images_target(stack)
    if not isinstance(target, RefreshesImages):
        what = f"stack {name} keeps the image of its nodes while it exists; allowed: a stack of target {_able()}"
        raise Stop(what, f"`{format_command('image build', name)}`, and create the cluster again from it", BAD_INPUT)
    images = target.list_images(deployment)
    _check_edits(stack, target, images)
    built = build_images(stack, force=force)
    spec = _read(stack)
    own_images = find_own_images(spec, [image.id for image in images])
    for group, image in own_images.items():
        screen.say(f"group {group} keeps {image}, its own image")
    ids = {path: image.id for path, image in built.items()}
    groups = {path: target.groups_of_image(path, spec) for path in ids}
    for replacement in plan_replacements(ids, groups, keeping=own_images):
        with _emptied_group(stack, replacement.group, force=force):
            screen.say(f"{replacement.path}: {replacement.image}")
            _write_images(stack, replacement)
            up(name, force=force, wait=False, command="image refresh")
    permanent = [node.name for node in target_of(spec).plan(spec).nodes if node.role != "compute"]
    # The controller comes last: until then it hands the jobs of nodes that are replaced to others.
    for node in sorted(permanent, key=lambda name: name == CONTROLLER):
        with screen.status(f"replacing {node}"):
            target.end_machine(deployment, node)
        up(name, force=force, wait=False, preflight=False, command="image refresh")
    all_machines = "all other machines" if own_images else "all machines"
    screen.print_success(f"{all_machines} of stack {name} start from {', '.join(ids.values())}")
    if unused := list_unused(stack, target, images):
        remove_command = format_command("image remove", name)
        screen.say(f"stack {name} no longer names {', '.join(unused)}; `{remove_command} IMAGE` ends the cost of one")


def _able() -> str:
    return ", ".join(sorted(target.name for target in targets().values() if isinstance(target, RefreshesImages)))


def find_own_images(spec: ClusterSpec, built_here: Sequence[str]) -> dict[str, str]:
    """Return images of single groups that no build of this cluster made, by group; a refresh leaves them alone.

    The others are those of a refresh that was interrupted, or of a trial of a new image on one group.
    """
    return {name: group.image for name, group in spec.groups.items() if group.image and group.image not in built_here}


def plan_replacements(
    images: Mapping[str, str], groups: Mapping[str, Sequence[str]], keeping: Mapping[str, str]
) -> list[Replacement]:
    """Return the replacements in order, one group at a time; `images` and `groups` are those of each property.

    Until the last group of an image is replaced, the property still names the old one, from which the others start.
    """
    replacements: list[Replacement] = []
    for path, image in images.items():
        replaced = [group for group in groups[path] if group not in keeping]
        own_paths = {group: f"groups.{group}.image" for group in replaced}
        replacements += [Replacement(image, own_paths[group], group) for group in replaced[:-1]]
        replacements.append(
            Replacement(image, path, replaced[-1] if replaced else "", obsolete=tuple(own_paths.values()))
        )
    return replacements


@contextmanager
def _emptied_group(stack: StackHome, group: str, *, force: bool) -> Iterator[None]:
    """Drain the nodes of a group, and wait until their jobs have ended or are requeued.

    Nodes that are not replaced, because something fails or is interrupted, run jobs again.
    """
    spec = _read(stack)
    target = target_of(spec)
    nodes = [node.name for node in target.plan(spec).members if group and node.group == group]
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


def _check_edits(stack: StackHome, target: RefreshesImages, images: Sequence[MachineImage]) -> None:
    """Raise Stop if the stack file has a form in which the images cannot be written, before builds cost money."""
    spec, text = _read(stack), stack.file.read_text(encoding="utf-8")
    paths = target.image_paths(spec, images)
    groups = {path: target.groups_of_image(path, spec) for path in paths}
    own_images = find_own_images(spec, [image.id for image in images])
    for replacement in plan_replacements(dict.fromkeys(paths, "new"), groups, keeping=own_images):
        try:
            text = edit_images(text, replacement)
        except ValueError as unusual:
            what = f"{stack.file} cannot be changed: {unusual}; nothing was built"
            fix = f"write the mappings of `{replacement.path}` out there, without anchors, and refresh again"
            raise Stop(what, fix, BAD_INPUT) from None


def edit_images(text: str, replacement: Replacement) -> str:
    """Return the text of a stack file that names the image; raise ValueError if the file has an unusual form."""
    text = set_value(text, replacement.path, replacement.image)
    for path in replacement.obsolete:
        text = remove_value(text, path)
    return text


def _write_images(stack: StackHome, replacement: Replacement) -> None:
    """Write the image into the stack file, all or nothing; the file may have changed since the first check."""
    try:
        text = edit_images(stack.file.read_text(encoding="utf-8"), replacement)
        replace_stack_file(stack.file, text)
    except (OSError, ValueError) as problem:
        line = f"`{replacement.path}: {replacement.image}`"
        fix = f"write {line} there, then `{format_command('up', stack.name)}`"
        raise Stop(f"{stack.file} could not be changed: {problem}", fix, FAILED) from None


def _read(stack: StackHome) -> ClusterSpec:
    return require_valid_spec(stack, *examine_spec(stack, None))
