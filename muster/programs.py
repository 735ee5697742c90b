"""The commands that parse their own arguments: those of the simulator, and the trainer."""

from __future__ import annotations

import typer

PASS_ON = {"allow_interspersed_args": False, "ignore_unknown_options": True}
_PASS_ALL = {**PASS_ON, "allow_extra_args": True, "help_option_names": []}
_SIMULATOR = {
    "plan": "choose machines and a layout by time and cost.",
    "predict": "predict the step time, memory and cost of a run.",
    "report": "compare runs with their predictions.",
    "emulate": "run up to 1,024 ranks in one process.",
    "calibrate": "measure this machine for better predictions.",
}


def add_programs(app: typer.Typer) -> None:
    """Add these commands to the command line; they get all their arguments, including `--help`."""
    for name, summary in _SIMULATOR.items():
        _add_simulator(app, name, summary)
    app.command(context_settings=_PASS_ALL, add_help_option=False)(train)


def train(ctx: typer.Context) -> None:
    """Train a model on this machine; needs torch."""
    from muster.commands.train import train as run

    raise typer.Exit(run(ctx.args))


def _add_simulator(app: typer.Typer, name: str, summary: str) -> None:
    def run(ctx: typer.Context) -> None:
        from simulator.__main__ import main as simulate

        raise typer.Exit(simulate([name, *ctx.args]))

    run.__doc__ = summary
    app.command(name, context_settings=_PASS_ALL, help=f"Simulator: {summary}", add_help_option=False)(run)
