"""The `muster` command: one function per subcommand, each importing its module only when it runs."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from infra.engine.stop import INTERRUPTED
from infra.home import DEFAULT_STACK
from muster.backup_app import backup_app
from muster.cache_app import cache_app
from muster.command_after_dashes import CommandAfterDashes
from muster.command_sections import SectionedCommands
from muster.image_app import image_app
from muster.kubernetes_app import kubernetes_app
from muster.options import Json, Stack, chosen_stack
from muster.programs import PASS_ON, add_programs
from muster.rehearse_command import rehearse
from muster.rotate_app import rotate_app
from muster.state_app import state_app

GARBAGE_THRESHOLD = 50_000
"""Number of new objects after which Python looks for garbage among them."""
app = typer.Typer(
    cls=SectionedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Plain help: typer's boxes import rich's Markdown parser, which doubles the start-up time.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Create a Slurm GPU cluster from one typed YAML file, and train on it.",
)
app.add_typer(cache_app, name="cache")
app.add_typer(state_app, name="state")
app.add_typer(rotate_app, name="rotate")
app.add_typer(kubernetes_app, name="kubernetes")
app.add_typer(image_app, name="image")
app.add_typer(backup_app, name="backup")


def _print_version(print_it: bool) -> None:
    if print_it:
        from importlib.metadata import version

        print(f"muster {version('muster')}")
        raise typer.Exit


@app.callback()
def read_general_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Read the options that come before a command."""


@app.command()
def up(
    stack: Stack = DEFAULT_STACK,
    force: Annotated[
        bool, typer.Option("--force", help="Apply the change even if running jobs are interrupted.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="If another command is using this stack, wait for it instead of failing.")
    ] = False,
    no_preflight: Annotated[
        bool,
        typer.Option("--no-preflight", help="Do not check quotas, capacity and prices in the cloud account."),
    ] = False,
) -> None:
    """Create the cluster, or change it to match its stack file."""
    from muster.commands import screen
    from muster.commands.stacks import name_stack
    from muster.commands.up import list_next_steps
    from muster.commands.up import up as run

    if run(stack, force=force, wait=wait, preflight=not no_preflight, launched=True).created:
        screen.print_next_steps(list_next_steps(stack))
    if name_stack(stack).rotation_mark.exists():
        from muster.commands.rotate import continue_rotation

        continue_rotation(stack, wait=wait)


app.command()(rehearse)


@app.command()
def upgrade(
    stack: Stack = DEFAULT_STACK,
    to: Annotated[
        str | None, typer.Option("--to", help="Slurm release; by default the newest, or with --back the one before it.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the steps.")] = False,
    drill: Annotated[
        bool | None,
        typer.Option(
            "--drill/--no-drill",
            help="Only try the new release on a copy of the queue and the accounting; or upgrade without this drill.",
        ),
    ] = None,
    back: Annotated[
        bool, typer.Option("--back", help="Restore the backup of an upgrade; everything since then is lost.")
    ] = False,
) -> None:
    """Change the Slurm release; keep jobs, queue and accounting."""
    from muster.commands import upgrade as command

    if back:
        command.go_back(stack, to=to or command.RELEASES[-2])
    else:
        command.upgrade(stack, to=to or command.NEWEST, dry_run=dry_run, drill=drill)


@app.command()
def status(stack: Stack = DEFAULT_STACK, as_json: Json = False) -> None:
    """Show nodes, queue, health and cost."""
    from muster.commands.status import status as run

    run(stack, as_json=as_json)


@app.command(cls=CommandAfterDashes)
def ssh(
    ctx: typer.Context,
    node: Annotated[str | None, typer.Argument(help="Node name; by default the login node.")] = None,
    stack: Stack = DEFAULT_STACK,
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            "-u",
            help="User to log in as; by default the first alphabetically. On other nodes than the login node: root, "
            "unless that user is an admin.",
        ),
    ] = None,
) -> None:
    """Open a shell on a node, or run one command there."""
    from muster.commands.ssh import ssh as run

    run(stack, node, user, ctx.obj)


@app.command()
def logs(
    node: Annotated[str, typer.Argument(help="Node name; its machine may be gone.")],
    stack: Stack = DEFAULT_STACK,
    machine: Annotated[
        str | None, typer.Option("--machine", help="Id of the machine; by default the node's latest.")
    ] = None,
) -> None:
    """Print the stored logs of a node, even if its machine is gone."""
    from muster.commands.logs import logs as run

    run(stack, node, machine)


@app.command(context_settings=PASS_ON)
def submit(
    job: Annotated[
        str | None, typer.Argument(help="Job file, such as slurm/jobs/smoke.sbatch; by default, list those that exist.")
    ] = None,
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments for the job.")] = None,
    stack: Stack = DEFAULT_STACK,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Number of nodes; overrides the job file.")
    ] = None,
) -> None:
    """Submit a job and follow its log. Ctrl-C ends only the following, not the job."""
    from muster.commands.submit import submit as run

    given = arguments or []
    run(stack, job, given[1:] if given[:1] == ["--"] else given, nodes)


@app.command()
def fabric(
    stack: Stack = DEFAULT_STACK,
    partition: Annotated[str | None, typer.Option("--partition", "-p", help="Test only this partition.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", "-w", help="Test only these nodes, such as gpu-[1-4]; by default all that are up."),
    ] = None,
    drain: Annotated[bool, typer.Option("--drain/--no-drain", help="Drain the nodes that are too slow.")] = True,
) -> None:
    """Measure the network between nodes and drain slow ones."""
    from muster.commands.fabric import fabric as run

    run(stack, partition, nodes, drain=drain)


@app.command()
def alerts(stack: Stack = DEFAULT_STACK) -> None:
    """Set the webhook for alerts. Its address is asked for, and written encrypted into the stack file."""
    from muster.commands.alerts import alerts as run

    run(stack)


@app.command()
def teardown(
    stack: Stack = DEFAULT_STACK,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Remove the cluster even if jobs are running.")] = False,
    delete_storage: Annotated[
        bool, typer.Option("--delete-storage", help="Also delete storage that the stack file keeps.")
    ] = False,
) -> None:
    """Remove the cluster and prove it with a receipt."""
    from muster.commands.teardown import teardown as run

    run(stack, yes=yes, force=force, delete_storage=delete_storage)


@app.command()
def restore(
    archive: Annotated[str, typer.Argument(help="Path of an archive, or its name in `muster backup list`.")],
    stack: Stack = DEFAULT_STACK,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Restore even if the cluster has jobs or files already.")
    ] = False,
    files: Annotated[bool, typer.Option("--files/--no-files", help="Also the files of the shared storage.")] = True,
) -> None:
    """Restore an archive to a new cluster: queue, accounting, files."""
    from muster.commands.restore import restore as run

    run(stack, archive, overwrite=overwrite, files=files)


@app.command()
def demo(stack: Stack = DEFAULT_STACK) -> None:
    """Create a cluster, train on it, and show the report."""
    from muster.commands.demo import demo as run

    run(stack)


@app.command()
def check(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Stack files (Pulumi.NAME.yaml) to check instead of --stack.")
    ] = None,
    stack: Stack = DEFAULT_STACK,
    as_json: Json = False,
) -> None:
    """Validate stack files without creating anything."""
    from muster.commands.check import check as run
    from muster.commands.check import check_files

    if files:
        check_files(files, as_json=as_json)
    else:
        run(stack, as_json=as_json)


@app.command()
def cost(stack: Stack = DEFAULT_STACK, as_json: Json = False) -> None:
    """Show what each part of the cluster costs, without creating it."""
    from muster.commands.cost import cost as run

    run(stack, as_json=as_json)


@app.command()
def bootstrap(stack: Stack = DEFAULT_STACK) -> None:
    """Run the bootstrap steps again over SSH, without Pulumi."""
    from muster.commands.bootstrap import bootstrap as run

    run(stack)


@app.command()
def output(
    key: Annotated[str | None, typer.Argument(help="Name of one output; by default all are printed.")] = None,
    stack: Stack = DEFAULT_STACK,
) -> None:
    """Print the stack's outputs as JSON."""
    from muster.commands.output import output as run

    run(stack, key)


@app.command()
def env() -> None:
    """Print variables for the Pulumi CLI: eval "$(muster env)"."""
    from muster.commands.shell_env import shell_env

    shell_env()


@app.command("setup-phases", hidden=True)
def setup_phases(
    stack: Stack = DEFAULT_STACK,
    slurm: Annotated[
        str | None, typer.Option("--slurm", help="Release of Slurm instead of the stack's, or `newest`.")
    ] = None,
) -> None:
    """Print the setup phases that the stack's target needs on this machine; an empty line means all."""
    from muster.commands.setup_phases import print_setup_phases

    print_setup_phases(stack, slurm)


@app.command()
def schema() -> None:
    """Print the JSON schema of a cluster description."""
    from muster.commands.documents import schema as run

    run()


@app.command()
def golden() -> None:
    """Regenerate the schema, the docs tables and the golden files."""
    from muster.commands.documents import golden as run

    run()


add_programs(app)


def main() -> None:
    """Run the command line, and print errors that the user can fix without a traceback."""
    # By default, Python looks for garbage after 700 new objects: a fifth of the processor time of most commands.
    gc.set_threshold(GARBAGE_THRESHOLD)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Without this, Python prints an error when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as failure:
        sys.exit(_report_failure(failure))


def _report_failure(failure: Exception) -> int:
    """Print the message of a known failure and return its exit code; re-raise any other, which is a bug."""
    from muster.commands import screen
    from muster.commands.failure import explain_failure, name_stack

    stop = explain_failure(failure)
    if stop is None:
        raise failure
    if stop.what:
        screen.print_stop(name_stack(stop, chosen_stack.get()))
    return stop.code


if __name__ == "__main__":
    main()
