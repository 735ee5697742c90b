"""The `muster` command: one function per subcommand, each importing its module only when it runs."""

# ruff: noqa: PLC0415
# Imports inside the functions keep `muster --help` and every quick command quick.
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from infra.engine.stop import INTERRUPTED
from infra.home import DEFAULT_STACK

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A Slurm cluster from one typed description.",
)
cache_app = typer.Typer(
    no_args_is_help=True, help="What is kept between clusters: images, training environments, tools."
)
app.add_typer(cache_app, name="cache")


class TakesCommand(TyperCommand):
    """`muster ssh NODE -- COMMAND`: what follows the dashes is not ours to read, also where no node is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.obj = after
        return super().parse_args(ctx, before)


Stack = Annotated[str, typer.Option("--stack", "-s", help="Name of a stack file, Pulumi.NAME.yaml.")]
_PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}


@app.command()
def up(
    stack: Stack = DEFAULT_STACK,
    force: Annotated[bool, typer.Option("--force", help="Remove or replace nodes even while jobs run there.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for another command on this stack instead of giving up.")
    ] = False,
    no_preflight: Annotated[
        bool, typer.Option("--no-preflight", help="On AWS: ask the account nothing but who you are.")
    ] = False,
) -> None:
    """Create the cluster, or make it what its stack file says."""
    from muster.commands import screen
    from muster.commands.up import up as run
    from muster.commands.up import what_next

    if run(stack, force=force, wait=wait, preflight=not no_preflight).created:
        screen.next_steps(what_next(stack))


@app.command()
def status(stack: Stack = DEFAULT_STACK) -> None:
    """Nodes, queue, health, cost."""
    from muster.commands.status import status as run

    run(stack)


@app.command(cls=TakesCommand, options_metavar="[OPTIONS] [-- COMMAND...]")
def ssh(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Argument(help="Node name; by default the login node.")] = None,
    stack: Stack = DEFAULT_STACK,
    user: Annotated[
        str | None, typer.Option("--user", "-u", help="Log in as this user; by default the first one.")
    ] = None,
) -> None:
    """A shell on a node, or one command there."""
    from muster.commands.ssh import ssh as run

    run(stack, node, user, ctx.obj)


@app.command(context_settings=_PASS_ON)
def submit(
    job: Annotated[str, typer.Argument(help="Job file, such as slurm/jobs/smoke.sbatch.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Given to the job file.")] = None,
    stack: Stack = DEFAULT_STACK,
    nodes: Annotated[int | None, typer.Option("--nodes", min=1, help="Instead of the job file's own.")] = None,
) -> None:
    """Submit a job on the login node and follow its log."""
    from muster.commands.submit import submit as run

    given = arguments or []
    run(stack, job, given[1:] if given[:1] == ["--"] else given, nodes)


@app.command()
def fabric(
    stack: Stack = DEFAULT_STACK,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Only this one; by default all.")] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", "-w", help="Only these, such as gpu-[1-4]; by default those that are up.")
    ] = None,
    drain: Annotated[bool, typer.Option("--drain/--no-drain", help="Take nodes that are below away.")] = True,
) -> None:
    """Measure the fabric between nodes, and take nodes that are below away."""
    from muster.commands.fabric import fabric as run

    run(stack, partition, nodes, drain=drain)


@app.command()
def teardown(
    stack: Stack = DEFAULT_STACK,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Remove it even while jobs run there.")] = False,
) -> None:
    """Remove everything, check that nothing is left, give a receipt."""
    from muster.commands.teardown import teardown as run

    run(stack, yes=yes, force=force)


@app.command()
def demo(stack: Stack = DEFAULT_STACK) -> None:
    """Up, the smoke job, a training run with its report, and a summary."""
    from muster.commands.demo import demo as run

    run(stack)


@app.command()
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Stack files to check, Pulumi.NAME.yaml, instead of --stack.")
    ] = None,
    stack: Stack = DEFAULT_STACK,
) -> None:
    """Check stack files; starts nothing."""
    from muster.commands.check import check as run
    from muster.commands.check import check_files

    if files:
        check_files(files)
    else:
        run(stack)


@app.command()
def cost(stack: Stack = DEFAULT_STACK) -> None:
    """What an hour costs."""
    from muster.commands.cost import cost as run

    run(stack)


@app.command()
def bootstrap(stack: Stack = DEFAULT_STACK) -> None:
    """Configure the nodes again over SSH, without Pulumi; changes only what differs."""
    from muster.commands.bootstrap import bootstrap as run

    run(stack)


@app.command()
def output(
    key: Annotated[str | None, typer.Argument(help="One output; by default all.")] = None,
    stack: Stack = DEFAULT_STACK,
) -> None:
    """The stack's outputs as JSON."""
    from muster.commands.output import output as run

    run(stack, key)


@app.command()
def env() -> None:
    """Shell lines after which plain `pulumi` works here: eval "$(make -s env)"."""
    from muster.commands.shell_env import shell_env

    shell_env()


@app.command("setup-phases", hidden=True)
def setup_phases(stack: Stack = DEFAULT_STACK) -> None:
    """Print the phases of set-up that the stack's target needs on this machine; nothing means all."""
    from muster.commands.setup_phases import print_setup_phases

    print_setup_phases(stack)


@app.command()
def schema() -> None:
    """The JSON schema of a cluster."""
    from muster.commands.documents import schema as run

    run()


@app.command()
def golden() -> None:
    """Write again what is generated: schema, field tables, expected expansions."""
    from muster.commands.documents import golden as run

    run()


@cache_app.command("list")
def cache_list() -> None:
    """What is kept, and how large it is."""
    from muster.commands.cache import list_caches

    list_caches()


@cache_app.command("drop")
def cache_drop() -> None:
    """Remove all of it; refused while a cluster runs."""
    from muster.commands.cache import drop_caches

    drop_caches()


def main() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as failure:
        sys.exit(_ended(failure))


def _ended(failure: Exception) -> int:
    """What is meant for people is shown as it is; anything else is a fault of ours and keeps its traceback."""
    from muster.commands import screen
    from muster.commands.failure import explained

    stop = explained(failure)
    if stop is None:
        raise failure
    if stop.what:
        screen.stopped(stop)
    return stop.code


if __name__ == "__main__":
    main()
