"""The command line of setup: select phases, check the machine, run the phases and report what each one took."""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial

from setup import apt, engine, kubernetes, pins, trainer_image, virtual_machines
from setup.facts import Facts
from setup.gather import gather
from setup.paths import Paths, exclusive_lock
from setup.preflight import find_problems
from setup.progress import Progress
from setup.registry import NAMES, PHASES, Phase, dependencies
from setup.run import SetupError, StoppedError
from setup.schedule import Record, run_concurrently, started_engine

# Phases that install what only tests need.
_FOR_TESTS = {
    "browser": apt.install_browser,
    "fault-tools": apt.install_fault_tools,
    "kubernetes": kubernetes.install,
    "trainer-image": trainer_image.build,
    "virtual-machines": virtual_machines.install,
}


def main(argv: Sequence[str]) -> int:
    """Run `python3 -m setup` and return its exit code."""
    options = _parse_options(argv)
    paths = Paths.from_environment()
    # The PATH of a normal user, and of root after `su`, lacks the directories of debootstrap and dockerd.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    _handle_signals()
    try:
        _dispatch(options, paths)
    except SetupError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to continue", file=sys.stderr)
        return 130
    return 0


def _dispatch(options: argparse.Namespace, paths: Paths) -> None:
    if options.phases == ["stop-docker"]:
        if not options.if_started_by_last_run or started_engine(paths.record):
            print(engine.stop(paths))
    elif options.phases and options.phases[0] in _FOR_TESTS:
        _install_for_tests(paths, options.phases[0])
    elif options.check or options.phases == ["preflight"]:
        facts = _preflight(paths, NAMES, only_look=True)
        print(f"preflight: this machine can run muster; to do: {', '.join(_phases_with_work(facts)) or 'nothing'}")
    else:
        with exclusive_lock(paths.cache / "setup.lock", lambda text: print(f"setup: {text}", flush=True)):
            chosen = choose_phases(options.phases, options.slurm)
            _run(paths, [phase for phase in PHASES if phase.name in chosen])


def choose_phases(named: Sequence[str], slurm: str | None) -> set[str]:
    """Return the phases to run: the named ones, or all; `slurm` adds or leaves out the image of the default release.

    The image of the older release needs no phase of its own: that of the default release is built on it.
    """
    chosen = set(named) or set(NAMES)
    if slurm == pins.SLURM:
        return chosen | {"slurm"}
    return chosen if named or slurm is None else chosen - {"slurm"}


def _handle_signals() -> None:
    """Make SIGTERM and SIGHUP interrupt setup like Ctrl-C, so that it also ends its commands' process groups."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # nohup ignores the signal so that setup continues.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    choices = ("preflight", *NAMES, *_FOR_TESTS, "stop-docker")
    parser = argparse.ArgumentParser(
        prog="python3 -m setup", description="Install what muster needs on this machine; skip what is up to date."
    )
    phases = (
        f"preflight, {', '.join(NAMES)} (default: all); or, alone, browser (install a browser for the tests of HTML "
        "pages), fault-tools (install what nightly tests cause faults with), kubernetes (build the programs of a "
        "Kubernetes cluster for nightly tests), trainer-image (build trainer/Dockerfile for nightly tests), "
        "virtual-machines (build the machine whose copies nightly tests run on) or stop-docker (stop the Docker "
        "engine that setup started)"
    )
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=phases)
    parser.add_argument(
        "--check", action="store_true", help="check whether setup can run on this machine; change nothing"
    )
    parser.add_argument(
        "--slurm",
        metavar="RELEASE",
        choices=pins.SLURM_RELEASES,
        help=f"release of Slurm in the node image: {', '.join(pins.SLURM_RELEASES)} (default: {pins.SLURM})",
    )
    parser.add_argument(
        "--if-started-by-last-run",
        action="store_true",
        help="with stop-docker: stop the engine only if the last run of setup started it",
    )
    options = parser.parse_args(argv)
    for phase in options.phases:
        if phase not in choices:
            parser.error(f"PHASE {phase!r} is not one of: {', '.join(choices)}")
    for alone in (*_FOR_TESTS, "stop-docker"):
        if alone in options.phases and len(options.phases) > 1:
            parser.error(f"{alone} cannot be combined with other phases")
    return options


def _run(paths: Paths, phases: Sequence[Phase]) -> None:
    record = Record()
    try:
        with record.measure("preflight") as result:
            facts = _preflight(paths, [phase.name for phase in phases], only_look=False)
            result.state = "done"
        with Progress() as progress:
            tasks = {phase.name: partial(_run_phase, phase, paths, facts, record, progress) for phase in phases}
            errors = run_concurrently(tasks, dependencies(facts))
    finally:
        record.results.sort(key=lambda result: ("preflight", *NAMES).index(result.phase))
        record.write(paths.record)
    failures = {name: error for name, error in errors.items() if not isinstance(error, StoppedError)}
    for error in failures.values():
        if not isinstance(error, SetupError):
            raise error
    if failures:
        raise SetupError(_describe(failures, record))
    print(record.summary())


def _run_phase(phase: Phase, paths: Paths, facts: Facts, record: Record, progress: Progress) -> None:
    log = paths.logs / f"{phase.name}.log"
    with record.measure(phase.name) as result:
        if phase.is_done(paths, facts):
            result.state = "cached"
            return
        log.write_bytes(b"")
        progress.start(phase.name, log, f"{phase.name:<10} starts; log: {log}")
        try:
            phase.run(paths, facts, log)
        finally:
            progress.finish(phase.name)
        result.state = "done"
    progress.finish(phase.name, f"{phase.name:<10} {result.seconds:6.0f} s  done")


def _describe(failures: dict[str, Exception], record: Record) -> str:
    """Return the message of failed phases, each with the end of its log, and which phases were stopped with them."""
    parts = [f"phase {name} failed: {error}" for name, error in failures.items()]
    stopped = record.phases_in("stopped")
    if stopped:
        parts.append(f"  stopped because of it: {', '.join(stopped)}")
    return "\n".join([*parts, "  fix the cause and run setup again: finished phases are not repeated"])


def _preflight(paths: Paths, names: Sequence[str], *, only_look: bool) -> Facts:
    _make_logs(paths)
    log = paths.logs / "preflight.log"
    log.write_text("inspecting the machine and probing the package sources\n")
    with Progress() as progress:
        progress.start("preflight", log)
        facts = gather(paths, names, only_look=only_look)
    problems = find_problems(facts)
    if problems:
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(problems, 1))
        raise SetupError(f"this machine is not ready; nothing was started.\n{lines}")
    return facts


def _install_for_tests(paths: Paths, phase: str) -> None:
    _make_logs(paths)
    log = paths.logs / f"{phase}.log"
    log.write_bytes(b"")
    with Progress() as progress:
        progress.start(phase, log)
        _FOR_TESTS[phase](paths, log)


def _make_logs(paths: Paths) -> None:
    paths.logs.mkdir(parents=True, exist_ok=True)
    # The output of tools may contain URLs with passwords.
    paths.logs.chmod(0o700)


def _phases_with_work(facts: Facts) -> list[str]:
    return [name for name in NAMES if name in facts.missing or (name == "apt" and apt.packages(facts))]
