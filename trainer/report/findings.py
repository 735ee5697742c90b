"""List the unusual findings about a run and how to react to them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from trainer.config.schema import WatchdogConfig

BAD_OUTCOMES = ("broken", "failed", "hang", "bad_input")
Level = Literal["bad", "note", "good"]
DATA_SHARE_LIMIT = 0.05
COMMUNICATION_SHARE_LIMIT = 0.20
CHECKPOINT_SHARE_LIMIT = 0.05
OVERFITTING_FACTOR = 1.02
_MAX_NAMED_CAUSES = 5
DEFAULT_STRAGGLER_FACTOR = WatchdogConfig().straggler


@dataclass(frozen=True)
class Finding:
    """A sentence about a run and how serious it is."""

    level: Level
    text: str


def list_findings(summary: dict[str, Any], straggler: float = DEFAULT_STRAGGLER_FACTOR) -> list[Finding]:
    """Return the findings about a run, the most serious first."""
    findings = [*_judge_end(summary), *_judge_health(summary), *_judge_split(summary)]
    findings += _find_stragglers(summary, straggler)
    return sorted(findings, key=lambda finding: ("bad", "note", "good").index(finding.level))


def _judge_end(summary: dict[str, Any]) -> list[Finding]:
    findings = []
    name, step, steps = summary["outcome"], summary["step"], summary["steps"]
    if name == "no end recorded":
        findings.append(
            Finding("note", f"No end is recorded after step {step}: the run is still running, or it was killed.")
        )
    elif name in BAD_OUTCOMES:
        findings.append(
            Finding("bad", f"The run ended as {name} at step {step}: {summary['reason'] or 'no reason given'}.")
        )
    elif name == "finished":
        findings.append(Finding("good", f"All {steps or step} steps are complete."))
    failures = _list_earlier_failures(summary)
    if failures:
        causes = Counter(f"{first['cause'].replace('_', ' ')} on {first['host']}" for first in failures)
        texts = ", ".join(f"{count}x {cause}" for cause, count in causes.most_common(_MAX_NAMED_CAUSES))
        findings.append(Finding("note", f"Attempts that failed before: {texts}; see the failures below."))
    recovery = summary["recovery_s"]
    if recovery:
        times = ", ".join(f"{seconds:.1f} s" for seconds in recovery[:8])
        more = f" and {len(recovery) - 8} more" if len(recovery) > 8 else ""  # noqa: PLR2004
        findings.append(
            Finding("note", f"The run was restarted {len(recovery)}x; the time until the next step was {times}{more}.")
        )
    return findings


def _list_earlier_failures(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the failures of earlier attempts: all but the one that ended the run.

    An end that the ranks voted for has no record among the failures.
    """
    failures, end = summary["failures"], summary["failure"]
    is_end_recorded = failures and end and all(failures[-1][key] == end[key] for key in ("rank", "error"))
    return failures[:-1] if summary["outcome"] in BAD_OUTCOMES and is_end_recorded else failures


def _judge_health(summary: dict[str, Any]) -> list[Finding]:
    findings = []
    if summary["skipped"]:
        findings.append(
            Finding(
                "bad", f"{summary['skipped']} recorded updates were skipped: their gradients contained NaN or infinity."
            )
        )
    for message in summary["corruptions"]:
        text = f"Silent corruption {message}: have that node tested, and keep jobs off it."
        findings.append(Finding("bad", text))
    if summary["failed_saves"]:
        findings.append(Finding("bad", f"{summary['failed_saves']} saves failed; see the events for the reasons."))
    first, last = summary["first_loss"], summary["last_loss"]
    if first is not None and last is not None and last > first:
        findings.append(Finding("bad", f"The loss rose from {first:.4g} to {last:.4g}."))
    evaluation = summary["evaluation"]
    if evaluation and evaluation["loss"] > OVERFITTING_FACTOR * evaluation["best_loss"]:
        text = f"The evaluation loss was lowest at step {evaluation['best_step']} ({evaluation['best_loss']:.4g}) and "
        text += f"then rose to {evaluation['loss']:.4g}: train for fewer steps, or use checkpoint.best=loss."
        findings.append(Finding("note", text))
    return findings


def _judge_split(summary: dict[str, Any]) -> list[Finding]:
    findings = []
    split = summary["split"]
    if (split["data"] or 0) > DATA_SHARE_LIMIT:
        text = f"{split['data']:.0%} of a step is spent waiting for data: increase data.workers and data.ahead."
        findings.append(Finding("bad", text))
    if split["communication"] is None and (summary["ranks"] or 1) > 1:
        findings.append(Finding("note", "Communication was not measured: set metrics.profile_every."))
    elif (split["communication"] or 0) > COMMUNICATION_SHARE_LIMIT:
        text = f"{split['communication']:.0%} of a step is communication that is not hidden by compute: "
        findings.append(Finding("bad", text + "accumulate more micro-batches, or use another parallel.strategy."))
    if (split["checkpoint"] or 0) > CHECKPOINT_SHARE_LIMIT:
        text = f"{split['checkpoint']:.0%} of a step is spent waiting for checkpoints: increase checkpoint.every."
        findings.append(Finding("bad", text))
    return findings


def _find_stragglers(summary: dict[str, Any], factor: float) -> list[Finding]:
    times = {rank: seconds for rank, seconds in summary["rank_step_s"].items() if seconds}
    if len(times) < 2:  # noqa: PLR2004
        return []
    usual = median(times.values())
    slow = [(rank, seconds / usual) for rank, seconds in times.items() if seconds > factor * usual]
    return [Finding("bad", f"Rank {rank} takes {ratio:.2f}x the time of the median rank.") for rank, ratio in slow]
