"""The subcommands of `muster image`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra.home import DEFAULT_STACK
from muster.options import Stack

image_app = typer.Typer(no_args_is_help=True, help="Build images for nodes, and images in which jobs run.")


@image_app.command("build")
def image_build(stack: Stack = DEFAULT_STACK) -> None:
    """Build and test images of nodes that have everything installed."""
    from muster.commands.image import build

    build(stack)


@image_app.command("refresh")
def image_refresh(
    stack: Stack = DEFAULT_STACK,
    force: Annotated[bool, typer.Option("--force", help="Requeue running jobs instead of waiting for them.")] = False,
) -> None:
    """Build images from the newest base and replace all machines.

    Node groups are replaced one after the other, the controller last. The queue and the accounting are kept.
    """
    from muster.commands.image_refresh import refresh

    refresh(stack, force=force)


@image_app.command("list")
def image_list(stack: Stack = DEFAULT_STACK) -> None:
    """List the images that were built on the cluster."""
    from muster.commands.image import list_images

    list_images(stack)


@image_app.command("remove")
def image_remove(
    image: Annotated[str, typer.Argument(help="Id of the image, as `muster image list` prints it.")],
    stack: Stack = DEFAULT_STACK,
) -> None:
    """Remove an image and its snapshots."""
    from muster.commands.image import remove

    remove(stack, image)


@image_app.command("job")
def image_job(
    dockerfile: Annotated[Path, typer.Argument(help="Dockerfile of the image.")],
    name: Annotated[str, typer.Option("--name", help="Name of the image on the cluster.")],
    context: Annotated[
        Path | None,
        typer.Option("--context", help="Folder that COPY reads from.", show_default="that of the Dockerfile"),
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option("--build-arg", help="NAME=VALUE of an ARG in the Dockerfile; repeatable.")
    ] = None,
    stack: Stack = DEFAULT_STACK,
) -> None:
    """Build an image for jobs and copy it to the cluster.

    Docker or podman builds it; jobs run in it with `--container`.
    """
    from muster.commands.image_job import build_job_image

    build_job_image(stack, dockerfile, name, context, build_arg or ())
