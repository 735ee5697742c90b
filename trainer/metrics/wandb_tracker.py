"""Record metrics in Weights & Biases, online or in the run's folder."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_INIT_TIMEOUT_S = 30.0


class WandbTracker:
    """A run in Weights & Biases. A restart continues it, because its id is stored in the run's folder.

    Without a key or a network, metrics are recorded in the folder, as in the mode `offline`. Not every version of
    wandb can continue a run offline: an upload may replace what an earlier start recorded under the same id. So each
    offline start is a run of its own, in a group with the others.
    """

    setting = "metrics.wandb"

    def __init__(self, folder: Path, mode: str, project: str, name: str, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._mode = mode
        self._project = project
        self._name = name
        self._config = dict(config)
        self._run: Any = None

    def open(self) -> str:
        """Start or continue the run, and return where it is recorded."""
        where = (
            f"recording in {self._folder / 'wandb'}; upload with `wandb sync {self._folder / 'wandb'}/offline-run-*`"
        )
        if self._mode == "offline":
            self._start("offline")
            return where
        try:
            self._start("online")
        except Exception as error:  # wandb has no common class for a missing key, a wrong key and a missing network
            _teardown()
            self._start("offline")
            text = " ".join(f"{type(error).__name__}: {error}".split())
            return f"cannot reach Weights & Biases ({text}); {where}"
        return f"recording at {self._run.url}"

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record the metrics of a step; the step is a metric too, because wandb's own cannot go back in a rollback."""
        self._run.log({**values, "step": step})

    def close(self, outcome: str) -> None:
        """Send everything, and mark the run as finished or crashed."""
        self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=0 if outcome in ("finished", "stopped", "requeue") else 1)

    def _start(self, mode: str) -> None:
        import wandb  # noqa: PLC0415 - optional, and slow to import

        self._folder.mkdir(parents=True, exist_ok=True)
        identity = self._read_or_make_id()
        is_online = mode == "online"
        self._run = wandb.init(
            project=self._project,
            name=self._name,
            id=identity if is_online else f"{identity}-{time.time_ns() // 1_000_000}",
            group=None if is_online else identity,
            resume="allow" if is_online else None,
            dir=str(self._folder),
            config=self._config,
            mode=mode,
            # Our own progress line is enough; wandb would redirect the output and ask for a key on a terminal.
            settings=wandb.Settings(console="off", silent=True, init_timeout=_INIT_TIMEOUT_S),
        )
        self._run.define_metric("*", step_metric="step")

    def _read_or_make_id(self) -> str:
        """Return the run's id: random, because another machine or an earlier run may have used the same folder name."""
        file = self._folder / "wandb-run"
        stored = file.read_text(encoding="utf-8").strip() if file.exists() else ""
        if stored:
            return stored
        identity = secrets.token_hex(8)
        file.write_text(identity, encoding="utf-8")
        return identity


def _teardown() -> None:
    """Stop wandb's service: after a failed start, it would refuse the same run id as being in use."""
    import wandb  # noqa: PLC0415 - optional, and slow to import

    wandb.teardown()
