"""Sentences about what stands out in a run, each with what to do about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from trainer.config.schema import WatchdogConfig

Level = Literal["bad", "note", "good"]
DATA_SHARE = 0.05
COMMUNICATION_SHARE = 0.20
CHECKPOINT_SHARE = 0.05
STRAGGLER = WatchdogConfig().straggler


@dataclass(frozen=True)
class Finding:
    level: Level
    text: str


def findings(summary: dict[str, Any], straggler: float = STRAGGLER) -> list[Finding]:
    found = [*_end(summary), *_health(summary), *_split(summary), *_stragglers(summary, straggler)]
    return sorted(found, key=lambda finding: ("bad", "note", "good").index(finding.level))


def _end(summary: dict[str, Any]) -> list[Finding]:
    found = []
    name, step, steps = summary["outcome"], summary["step"], summary["steps"]
    if name == "no end recorded":
        found.append(Finding("note", f"No end is recorded after step {step}: the run still goes on, or was killed."))
    elif name in ("broken", "hang", "bad_input"):
        found.append(
            Finding("bad", f"The run ended as {name} at step {step}: {summary['reason'] or 'no reason given'}.")
        )
    elif name == "finished":
        found.append(Finding("good", f"All {steps or step} steps are done."))
    recovery = summary["recovery_s"]
    if recovery:
        times = ", ".join(f"{seconds:.1f} s" for seconds in recovery[:8])
        more = f" and {len(recovery) - 8} more" if len(recovery) > 8 else ""  # noqa: PLR2004
        found.append(
            Finding("note", f"The run was started again {len(recovery)}x; until the next step it took {times}{more}.")
        )
    return found


def _health(summary: dict[str, Any]) -> list[Finding]:
    found = []
    if summary["skipped"]:
        found.append(
            Finding(
                "bad", f"{summary['skipped']} recorded updates were skipped: their gradients had a NaN or an infinity."
            )
        )
    if summary["failed_saves"]:
        found.append(Finding("bad", f"{summary['failed_saves']} saves failed; see the events for the reasons."))
    first, last = summary["first_loss"], summary["last_loss"]
    if first is not None and last is not None and last > first:
        found.append(Finding("bad", f"The loss rose from {first:.4g} to {last:.4g}."))
    return found


def _split(summary: dict[str, Any]) -> list[Finding]:
    found = []
    split = summary["split"]
    if (split["data"] or 0) > DATA_SHARE:
        text = f"{split['data']:.0%} of a step is waiting for data: raise data.workers and data.ahead."
        found.append(Finding("bad", text))
    if split["communication"] is None and (summary["ranks"] or 1) > 1:
        found.append(Finding("note", "Communication was not measured: set metrics.profile_every."))
    elif (split["communication"] or 0) > COMMUNICATION_SHARE:
        text = f"{split['communication']:.0%} of a step is communication that compute does not cover: "
        found.append(Finding("bad", text + "accumulate more micro-batches, or choose another parallel.strategy."))
    if (split["checkpoint"] or 0) > CHECKPOINT_SHARE:
        text = f"{split['checkpoint']:.0%} of a step is waiting for checkpoints: raise checkpoint.every."
        found.append(Finding("bad", text))
    return found


def _stragglers(summary: dict[str, Any], factor: float) -> list[Finding]:
    times = {rank: seconds for rank, seconds in summary["rank_step_s"].items() if seconds}
    if len(times) < 2:  # noqa: PLR2004
        return []
    usual = median(times.values())
    slow = [(rank, seconds / usual) for rank, seconds in times.items() if seconds > factor * usual]
    return [Finding("bad", f"Rank {rank} takes {ratio:.2f}x the time of the median rank.") for rank, ratio in slow]
