"""The command line: picks phases, runs those with work to do, and says what each one cost."""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from setup import apt, engine, env, image, kernel, pulumi, venv
from setup.facts import Facts
from setup.gather import gather
from setup.lock import exclusive
from setup.paths import Paths
from setup.preflight import problems
from setup.progress import Progress
from setup.record import Record, started_engine
from setup.run import Failed


@dataclass(frozen=True)
class Phase:
    name: str
    cached: Callable[[Paths, Facts], bool]
    act: Callable[[Paths, Facts, Path], None]


# apt goes first: on a fresh Debian it brings what Python needs to make a virtual environment.
PHASES = (
    Phase("apt", lambda _, facts: not apt.packages(facts), apt.act),
    Phase("venv", lambda paths, _: venv.cached(paths), venv.act),
    Phase("pulumi", lambda paths, _: pulumi.cached(paths), pulumi.act),
    Phase("docker", lambda _, facts: facts.engine.state == "running", engine.act),
    Phase("kernel", lambda _paths, _facts: kernel.cached(), kernel.act),
    Phase("image", lambda paths, _: image.cached(paths), image.act),
    Phase("env", lambda paths, _: env.cached(paths), env.act),
)
NAMES = tuple(phase.name for phase in PHASES)


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    paths = Paths.from_environment()
    # A plain user's PATH, and root's after `su`, lack the directories of debootstrap and dockerd.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
    _heed_signals()
    try:
        if options.phases == ["stop-docker"]:
            if not options.if_started_by_last_run or started_engine(paths.logs / "setup.json"):
                print(engine.stop(paths))
        elif options.check or options.phases == ["preflight"]:
            facts = _preflight(paths, NAMES, only_look=True)
            print(f"preflight: this machine can run muster; to be done: {', '.join(_work(facts)) or 'nothing'}")
        else:
            with exclusive(paths.cache / "setup.lock", lambda text: print(f"setup: {text}", flush=True)):
                _run(paths, [phase for phase in PHASES if not options.phases or phase.name in options.phases])
    except Failed as failure:
        print(f"setup: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsetup: interrupted; run it again to go on", file=sys.stderr)
        return 130
    return 0


def _heed_signals() -> None:
    """A kill and a closed terminal end what runs, as Ctrl-C does: the children are in groups of their own."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        # With nohup it is to go on.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _options(argv: Sequence[str]) -> argparse.Namespace:
    words = ("preflight", *NAMES, "stop-docker")
    parser = argparse.ArgumentParser(prog="python3 -m setup", description="Make this machine ready for muster.")
    listed = f"preflight, {', '.join(NAMES)} (default: all); or stop-docker: end the engine that setup started"
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=listed)
    parser.add_argument("--check", action="store_true", help="only look whether it can work, start nothing")
    last = "--if-started-by-last-run"
    parser.add_argument(last, action="store_true", help="stop-docker: only the engine that the last setup had to start")
    options = parser.parse_args(argv)
    for word in options.phases:
        if word not in words:
            parser.error(f"PHASE {word!r} is not one of: {', '.join(words)}")
    if "stop-docker" in options.phases and len(options.phases) > 1:
        parser.error("stop-docker goes alone")
    return options


def _run(paths: Paths, phases: Sequence[Phase]) -> None:
    record = Record()
    try:
        with record.timed("preflight") as outcome:
            facts = _preflight(paths, [phase.name for phase in phases], only_look=False)
            outcome.state = "done"
        for phase in phases:
            with record.timed(phase.name) as outcome:
                outcome.state = _do(phase, paths, facts)
    finally:
        record.write(paths.logs / "setup.json")
    print(record.summary())


def _do(phase: Phase, paths: Paths, facts: Facts) -> str:
    if phase.cached(paths, facts):
        return "cached"
    log = paths.logs / f"{phase.name}.log"
    log.write_bytes(b"")
    print(f"{phase.name:<10} starts; log: {log}", flush=True)
    with Progress(phase.name, log):
        phase.act(paths, facts, log)
    return "done"


def _preflight(paths: Paths, names: Sequence[str], *, only_look: bool) -> Facts:
    paths.logs.mkdir(parents=True, exist_ok=True)
    # What tools print may hold addresses with passwords.
    paths.logs.chmod(0o700)
    log = paths.logs / "preflight.log"
    log.write_text("looking at the machine and asking the package sources\n")
    with Progress("preflight", log):
        facts = gather(paths, names, only_look=only_look)
    found = problems(facts)
    if found:
        lines = "\n".join(f"  {number}. {problem}" for number, problem in enumerate(found, 1))
        raise Failed(f"this machine is not ready; nothing was started.\n{lines}")
    return facts


def _work(facts: Facts) -> list[str]:
    return [name for name in NAMES if name in facts.missing or (name == "apt" and apt.packages(facts))]
