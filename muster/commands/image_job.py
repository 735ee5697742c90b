"""`muster image job`: build an image from a Dockerfile, and unpack it on the cluster as a bundle for jobs."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from rich.status import Status

from bootstrap import job_images, state_backup
from infra.controller_shell import ControllerShell, ScriptError
from infra.engine.command_line import format_command
from infra.engine.stop import BAD_INPUT, FAILED, Stop
from infra.image_builder import BuilderError, BuiltImage, ImageBuilder, find_builder
from infra.shell import read_inventory
from muster.commands import screen
from muster.commands.stacks import require_running_stack
from slurm.containers.bundle import GO_ARCHITECTURES, render_bundle_config

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_DIGEST_LENGTH = 16


def build_job_image(
    stack_name: str, dockerfile: Path, name: str, context: Path | None = None, arguments: Sequence[str] = ()
) -> None:
    """Build an image and publish it on the cluster under a name; an image that is there already is not copied again."""
    check_input(dockerfile, name, context, arguments)
    stack = require_running_stack(stack_name)
    shared = read_inventory(stack).mounts[0]
    began = time.monotonic()
    try:
        builder = find_builder()
        image = builder.build(dockerfile, context or dockerfile.parent, arguments)
        digest, link = image.id[:_DIGEST_LENGTH], job_images.name_link(shared, name)
        controller = ControllerShell(stack)
        _check_architecture(image, controller)
        if controller.run(job_images.read_digest(shared, name)) == digest:
            screen.print_success(f"{link} has this image already; nothing was copied")
        else:
            _copy(controller, builder, image, shared, name)
            size = screen.format_size(image.size)
            screen.print_success(f"{link}: {size} in {time.monotonic() - began:.0f} s, for jobs that start from now on")
    except BuilderError as error:
        raise Stop(error.what, error.fix, FAILED) from None
    except ScriptError as error:
        what = f"the image was not published: controller: {error}"
        raise Stop(what, f"check the cluster with `{format_command('status', stack_name)}`", FAILED) from None
    screen.print_next_steps(
        [
            (f"srun --container={link} COMMAND", "run a command in it, on the login node"),
            (f"sbatch --container={link} JOB", "run a batch script in it"),
        ]
    )


def check_input(dockerfile: Path, name: str, context: Path | None, arguments: Sequence[str]) -> None:
    """Raise Stop if nothing can be built from these values."""
    if not NAME.fullmatch(name):
        allowed = "lowercase letters, digits, `.`, `_` and `-`, at most 63, and a letter or digit first"
        raise Stop(f"--name: '{name}' is not allowed", f"use {allowed}", BAD_INPUT)
    if not dockerfile.is_file():
        inside = dockerfile / "Dockerfile"
        hint = f"name the file: {inside}" if inside.is_file() else "name an existing Dockerfile"
        raise Stop(f"dockerfile: {dockerfile} is not a file", hint, BAD_INPUT)
    if context is not None and not context.is_dir():
        raise Stop(f"--context: {context} is not a folder", "name the folder that COPY reads from", BAD_INPUT)
    if wrong := [each for each in arguments if not re.match(r"\w+=", each)]:
        raise Stop(f"--build-arg: '{wrong[0]}' is not NAME=VALUE", "write for example BASE=debian:trixie", BAD_INPUT)


def check_space(free: int, size: int, shared: str) -> None:
    """Raise Stop if an image does not fit on the shared filesystem."""
    if free < size:
        available, needed = screen.format_size(free), screen.format_size(size)
        what = f"{shared} has {available} free, the image needs {needed}; nothing was copied"
        raise Stop(what, f"free space on {shared}")


def _check_architecture(image: BuiltImage, controller: ControllerShell) -> None:
    machine = controller.run("uname -m")
    needed = GO_ARCHITECTURES.get(machine, machine)
    if image.architecture != needed:
        what = f"the image is for {image.architecture}, the cluster's nodes are {needed}; nothing was copied"
        raise Stop(what, f"build it for this architecture (`FROM --platform=linux/{needed} ...`)", BAD_INPUT)


def _copy(controller: ControllerShell, builder: ImageBuilder, image: BuiltImage, shared: str, name: str) -> None:
    """Copy an image to the shared filesystem and publish it; leave nothing behind if that fails."""
    check_space(int(controller.run(state_backup.free_bytes(shared))), image.size, shared)
    attempt, digest = secrets.token_hex(4), image.id[:_DIGEST_LENGTH]
    config = render_bundle_config(image.architecture, image.environment, image.folder)
    try:
        with screen.status(f"copying {name}") as line:
            chunks = _show_progress(builder.export(image), line, name, image.size)
            controller.write(job_images.receive_image(shared, name, attempt), chunks)
            controller.run(job_images.publish_image(shared, name, attempt, digest, config))
    except BaseException:
        # If the controller does not answer, the next attempt removes it after a day.
        with suppress(ScriptError):
            controller.run(job_images.forget_attempt(shared, name, attempt))
        raise


def _show_progress(chunks: Iterator[bytes], line: Status, name: str, size: int) -> Iterator[bytes]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        line.update(f"copying {name}: {screen.format_size(total)} of about {screen.format_size(size)}")
        yield chunk
