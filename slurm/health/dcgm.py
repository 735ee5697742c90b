"""dcgm: NVIDIA's own diagnostics find nothing, on machines that have them; level 1 takes seconds, level 3 many minutes.

https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/dcgm-diagnostics.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from slurm.health.check import Check, Expected

RESULT = "/run/muster/dcgm-1.json"
"""The last result of level 1. Jobs wait for the prolog, so it only reads this, unless it is old; rounds and the prolog
remove a failing one, and so does a reset of the GPUs."""
AFTER_FAILURE_MARK = "/run/muster/dcgm-2"
DEEP_LIMIT = "MUSTER_DEEP_LIMIT_S"
"""Variable with the seconds until the maintenance reservation ends; a diagnosis that takes longer has no result."""
# Rounds renew the result before the prolog takes it for old.
_RENEW_MIN, _OLD_MIN = 10, 15
# Severities of DCGM's errors that say nothing about the hardware: to be watched, and settings such as persistence mode,
# which all machines of an image have in common.
_HARMLESS = (1, 5)
# Tests of settings, in releases whose results have no severities.
_SETTINGS = ("persistence mode", "environment variables", "permissions and os blocks", "graphics processes")
_TEXT_CHARS = 100


def judge(output: str, _expected: Expected) -> list[str]:
    """Return the failed tests; no output means that the machine has no DCGM, or that its service is not running."""
    start = output.find("{")
    if start < 0:
        return []
    try:
        document = json.loads(output[start:])
    except ValueError:
        return [f"cannot parse the output of dcgmi: {output[start:].strip()[:60]!r}"]
    return list(dict.fromkeys(_list_failures(document)))


def has_result(output: str) -> bool:
    """Return whether a diagnosis was done at all, which `judge` does not require."""
    return "{" in output


def _list_failures(document: dict[str, Any]) -> Iterator[str]:
    reports = [value for value in document.values() if isinstance(value, dict) and "test_categories" in value]
    for report in reports:
        tests = (test for category in report["test_categories"] for test in category.get("tests", ()))
        for test in tests:
            for result in test.get("results", ()):
                if _counts(str(test.get("name", "")), result):
                    yield _describe(str(test.get("name", "")), result)


def _counts(name: str, result: dict[str, Any]) -> bool:
    if str(result.get("status", "")).lower() != "fail" or name.lower() in _SETTINGS:
        return False
    severities = [warning.get("error_severity") for warning in _list_warnings(result)]
    return not severities or any(severity not in _HARMLESS for severity in severities)


def _describe(name: str, result: dict[str, Any]) -> str:
    gpu = result.get("entity_id", result.get("gpu_id", result.get("gpu_ids", "")))
    on_gpu = f" on GPU {gpu}" if gpu != "" else ""
    texts = [str(warning.get("warning", "")) for warning in _list_warnings(result)]
    return f"{name} failed{on_gpu}" + (f": {texts[0][:_TEXT_CHARS]}" if texts and texts[0] else "")


def _list_warnings(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings of a result; older releases have a text in place of a list."""
    warnings = result.get("warnings", ())
    if isinstance(warnings, str):
        return [{"warning": warnings}]
    return [warning if isinstance(warning, dict) else {"warning": str(warning)} for warning in warnings]


def _write_quick_script(_expected: Expected) -> str:
    # dcgmi exits with an error if a test fails; what it prints decides.
    return f"""\
command -v dcgmi >/dev/null || exit 0
mkdir -p {RESULT.rpartition("/")[0]}
if [ -n "${{SLURM_JOB_ID:-}}" ]; then minutes={_OLD_MIN}; else minutes={_RENEW_MIN}; fi
if [ -z "$(find {RESULT} -mmin -$minutes 2>/dev/null)" ]; then
  dcgmi diag -r 1 -j >{RESULT}.$$ 2>/dev/null
  mv {RESULT}.$$ {RESULT}
fi
cat {RESULT}
"""


def _write_after_failure(_expected: Expected) -> str:
    """Return a script that runs level 2 at most once an hour: most jobs fail because of their own errors."""
    return f"""\
command -v dcgmi >/dev/null || exit 0
mkdir -p {RESULT.rpartition("/")[0]}
[ -z "$(find {AFTER_FAILURE_MARK} -mmin -60 2>/dev/null)" ] || exit 0
touch {AFTER_FAILURE_MARK}
dcgmi diag -r 2 -j 2>/dev/null || true
"""


def _write_deep_script(_expected: Expected) -> str:
    # As with Ctrl-C, dcgmi then also ends the diagnosis in DCGM's service.
    return f"""\
command -v dcgmi >/dev/null || exit 0
if [ -z "${{{DEEP_LIMIT}:-}}" ]; then
  dcgmi diag -r 3 -j 2>/dev/null || true
  exit 0
fi
result=$(timeout -s INT -k 10 "${DEEP_LIMIT}" dcgmi diag -r 3 -j 2>/dev/null)
case $? in 124|137) ;; *) printf '%s\\n' "$result" ;; esac
"""


QUICK = Check(
    "dcgm",
    about="level 1 of DCGM's diagnostics passes, where DCGM is installed; its result is used for 15 minutes",
    applies=lambda expected: expected.gpus > 0,
    command=_write_quick_script,
    judge=judge,
    contexts=("gate", "prolog", "periodic"),
    limit_s=25.0,
    blame="node",
    remedies=("rounds", "reset", "reboot", "replace"),
)
AFTER_FAILURE = Check(
    "dcgm-2",
    about="level 2 passes after a failed job that was alone on the node, at most once an hour",
    applies=lambda expected: expected.gpus > 0,
    command=_write_after_failure,
    judge=judge,
    contexts=("failed-job",),
    limit_s=300.0,
    blame="node",
    remedies=("reset", "reboot", "replace"),
)
DEEP = Check(
    "dcgm-3",
    about="level 3 passes on an idle node in a maintenance reservation, once a day",
    applies=lambda expected: expected.gpus > 0,
    command=_write_deep_script,
    judge=judge,
    contexts=("maintenance",),
    limit_s=3600.0,
    blame="node",
    remedies=("reset", "reboot", "replace"),
)
