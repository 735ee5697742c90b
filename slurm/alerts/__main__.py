"""Watch the cluster and send alerts; runs on the controller next to slurmctld, which never waits for it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slurm.alerts import install, outbox, webhook
from slurm.alerts.conditions import View, list_conditions, select_new
from slurm.alerts.outbox import Outbox
from slurm.control import accounting, jobs, nodes

POLL_S = 15.0
COMMAND_TIMEOUT_S = 30.0
# The sweep's record of the month's spending, on targets that have a budget.
BUDGET = Path("/var/lib/muster/power/ceiling.json")


@dataclass(frozen=True)
class Settings:
    """The file that bootstrap writes."""

    webhook: str
    cluster: str
    stuck_s: float


def main() -> int:
    """Watch until the process is ended."""
    settings = Settings(**json.loads(Path(install.CONFIG).read_text(encoding="utf-8")))
    while True:
        watch_once(settings, Path(install.STATE), read_view, time.time())
        time.sleep(POLL_S)


def watch_once(settings: Settings, folder: Path, read: Callable[[], View], now: float) -> None:
    """Look at the cluster, queue what is new, and send a message if one is due."""
    state = _load(folder)
    new, history = select_new(list_conditions(read(), settings.stuck_s), state.get("history", {}), now)
    spooled = _read_spooled(folder / Path(install.SPOOL).name)
    texts = [*spooled.values(), *(condition.text for condition in new)]
    for text in texts:
        print(text, flush=True)
    waiting = outbox.add(_read_outbox(state), texts)
    # Saved before the message is sent: an alert may come twice, but is not lost if the program is killed.
    _save(folder, {"history": history, "outbox": asdict(waiting)})
    for path in spooled:
        path.unlink(missing_ok=True)
    if waiting.is_due(now):
        _save(folder, {"history": history, "outbox": asdict(_send(settings, waiting, now))})


def read_view() -> View:
    """Return the state of the cluster; a view without answers if slurmctld is silent."""
    try:
        listed = nodes.parse_nodes(_run(nodes.SHOW_NODES))
        waiting = jobs.parse_waiting(_run(jobs.LIST_WAITING))
    except (OSError, subprocess.SubprocessError):
        return View(answers=False)
    return View(listed, waiting, describe_spent(BUDGET), keeps_records=_keeps_records())


def describe_spent(path: Path) -> str:
    """Return the spending and its limit if the budget is spent; empty if not, or if there is no budget."""
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        spent, limit = float(saved["spent"]), float(saved["limit"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f"{spent:,.0f} of {limit:,.0f} USD this month" if spent >= limit else ""


def _keeps_records() -> bool:
    try:
        _run(accounting.SHOW_CLUSTERS)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _send(settings: Settings, waiting: Outbox, now: float) -> Outbox:
    try:
        webhook.send(settings.webhook, outbox.compose(waiting, settings.cluster))
    except webhook.FailedError as error:
        print(f"{error}; trying again", file=sys.stderr, flush=True)
        return outbox.after_failure(waiting, now, error.retry_after_s)
    except webhook.RefusedError as error:
        print(f"{error}; {len(waiting.waiting)} alerts were not sent", file=sys.stderr, flush=True)
    return outbox.after_success(waiting, now)


def _read_spooled(spool: Path) -> dict[Path, str]:
    """Return the alerts that other programs left, by file; anything but a plain file is no alert."""
    paths = [path for path in sorted(spool.glob("*")) if path.is_file() and not path.is_symlink()]
    return {path: path.read_text(encoding="utf-8", errors="replace") for path in paths[: install.MAX_SPOOLED]}


def _read_outbox(state: dict[str, Any]) -> Outbox:
    saved = state.get("outbox", {})
    return Outbox(**{**saved, "waiting": tuple(saved.get("waiting", ()))})


def _load(folder: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state


def _save(folder: Path, state: dict[str, Any]) -> None:
    new = folder / "state.json.new"
    new.write_text(json.dumps(state), encoding="utf-8")
    new.replace(folder / "state.json")


def _run(command: tuple[str, ...]) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
