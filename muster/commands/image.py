"""`muster image`: build images from which nodes start with everything installed, use them, list and remove them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cluster.plural import format_count
from cluster.spec import ClusterSpec
from cluster.spec.issue import render
from infra.engine import lock, pulumi
from infra.engine.command_line import format_command, rewrite_commands
from infra.engine.stop import BAD_INPUT, Stop
from infra.home import StackHome
from infra.targets.mixins import Images, MachineImage
from infra.targets.registry import parse_spec, target_of, targets
from infra.targets.target import Deployment
from infra.validate.update import violations
from muster.commands import screen
from muster.commands.stack_spec import examine_spec, name_stack_in_issues, require_valid_spec
from muster.commands.stacks import require_running_stack, require_stack
from muster.commands.upgrade import read_spec_text
from muster.deployments import find_deployment


def build(name: str) -> None:
    """Build and test the images of a stack, and print how to use them."""
    stack = require_stack(name)
    target, _ = find_images_target(stack)
    if target.images_need_cluster:
        require_running_stack(name)
    built = build_images(stack)
    screen.print_success(f"{format_count(len(built), 'image')} built and tested")
    screen.out().print(describe_use(name, built, target.image_use), markup=False, highlight=False)


def build_images(stack: StackHome, *, force: bool = True) -> Mapping[str, MachineImage]:
    """Build the images of a stack and return them by the property that names each.

    Raise Stop, before anything is built, if `up` would refuse the stack file; with `force`, `up FORCE=1`.
    """
    target, deployment = find_images_target(stack)
    spec = require_valid_spec(stack, *examine_spec(stack, None))
    with lock.held(stack, "image build", wait=False, say=screen.say):
        # Other images are for the next cluster, which may differ from the one that runs.
        if target.images_need_cluster:
            _require_allowed_change(stack, spec, force=force)
        return target.build_images(spec, stack, deployment, screen)


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


def list_unused(stack: StackHome, target: Images, images: Iterable[MachineImage]) -> list[str]:
    """Return the images that machines of the stack do not start from; other stacks may name them."""
    text = stack.file.read_text(encoding="utf-8")
    used = target.unnamed_images(stack, examine_spec(stack, None)[0])
    return [image.id for image in images if image.id not in text and image.id not in used]


def remove(name: str, image: str) -> None:
    """Remove an image that the stack does not use."""
    stack = require_stack(name)
    target, deployment = find_images_target(stack)
    if stack.file.exists() and image in stack.file.read_text(encoding="utf-8"):
        fix = f"name another image there, run `{format_command('up', name)}`, then remove it"
        raise Stop(f"image: {stack.file.name} names '{image}', so nodes start from it", fix, BAD_INPUT)
    spec, issues = examine_spec(stack, None) if stack.file.exists() else (None, [])
    if image in target.unnamed_images(stack, spec):
        if issues and spec is None:
            what = f"{stack.file.name} is invalid, so nodes may start from '{image}', which `up` chose for them"
            text = render(name_stack_in_issues(issues, name))
            raise Stop(f"image: {what}; nothing was removed\n{text}", code=BAD_INPUT)
        fix = f"name another image in {stack.file.name}, run `{format_command('up', name)}`, then remove it"
        raise Stop(f"image: nodes of stack {name} start from '{image}', which `up` chose for them", fix, BAD_INPUT)
    with screen.status(f"removing {image}"):
        target.remove_image(deployment, image)
    screen.print_success(f"removed {image}")


def describe_use(name: str, built: Mapping[str, MachineImage], use: str) -> str:
    """Return the lines of the stack file that make nodes start from images, and how to apply them."""
    lines = [f"    {path}: {image.id}" for path, image in built.items()]
    return "\n".join(["write into the stack file:", *lines, rewrite_commands(use, name)])


def find_images_target(stack: StackHome) -> tuple[Images, Deployment]:
    """Return the target of a stack and its deployment; raise Stop if nodes of that target do not use images."""
    target, deployment = find_deployment(stack)
    if not isinstance(target, Images):
        able = ", ".join(sorted(other.name for other in targets().values() if isinstance(other, Images)))
        what = f"stack {stack.name} has target {target.name}, for which no images are built; allowed: {able}"
        raise Stop(what, "install what its machines need yourself: nodes use what is there", BAD_INPUT)
    target.check_access(deployment)
    return target, deployment


def _require_allowed_change(stack: StackHome, written: ClusterSpec, *, force: bool) -> None:
    """Raise Stop if the running cluster cannot become what the stack file describes: nodes could not use the images."""
    running = parse_spec(read_spec_text(pulumi.resources(stack), stack.name))
    target = target_of(running)
    queue = target.queue(Deployment(running.name, stack.name, target.region(running)))
    if issues := violations(running, written, queue, force=force):
        text = rewrite_commands(render(issues), stack.name)
        raise Stop(f"{stack.file.name} cannot be applied to the cluster; nothing was built\n{text}", code=BAD_INPUT)
