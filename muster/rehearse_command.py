"""The options of `muster rehearse`."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.home import DEFAULT_STACK
from muster.options import Stack


def rehearse(
    stack: Stack = DEFAULT_STACK,
    seed: Annotated[int, typer.Option("--seed", help="Seed of all delays; the same seed repeats them.")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", help="Rehearse with this many seeds, from --seed on.")] = 1,
    speed: Annotated[float, typer.Option("--speed", help="Speed of the simulated cloud; 1 is real time.")] = 10.0,
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes of the job, and maximum nodes of a static group.")] = 2,
    scenario: Annotated[
        str,
        typer.Option(
            "--scenario",
            help="Scenario to rehearse, several that share a cluster, separated by commas, or `all`; an unknown name "
            "lists them.",
        ),
    ] = "",
    errors: Annotated[
        str,
        typer.Option(
            "--errors",
            help="Instead of a whole rehearsal: make the cloud answer each call of each command with these errors, and "
            "list the results: `sample` (one code of each class), `all`, or codes separated by commas.",
        ),
    ] = "",
    commands: Annotated[
        str,
        typer.Option(
            "--commands",
            help="With --errors: only the calls of these commands, separated by commas; an unknown name lists them.",
        ),
    ] = "",
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            help="With --errors: stop after this time; the next rehearsal continues. 0 only prints what is covered.",
        ),
    ] = None,
) -> None:
    """Rehearse the stack in a simulated cloud on this machine.

    A rehearsal creates the cluster, runs a job on it and removes it.
    """
    from muster.commands.rehearse import Choice
    from muster.commands.rehearse import rehearse as run

    choice = Choice(
        seed=seed,
        seeds=seeds,
        speed=speed,
        nodes=nodes,
        scenario=scenario,
        errors=errors,
        commands=commands,
        minutes=minutes,
    )
    run(stack, choice)
