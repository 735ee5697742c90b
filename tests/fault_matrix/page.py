"""Render docs/faults.md from the rows, the marked tests and the recorded times: `python -m tests.fault_matrix.page`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.fault_matrix.marked_tests import REPO, MarkedTest, list_marked_tests
from tests.fault_matrix.rows import ROWS, Row
from tests.fault_matrix.times import VARIABLE, Times, read_times

PAGE = Path("docs/faults.md")
NOT_MEASURED = "not measured"
NO_TIME = "-"
_HEAD = """\
<!-- Generated from tests/fault_matrix and the tests that are marked with its rows: change those, run `make golden`. -->
# What happens when something fails

38 faults of a GPU cluster, and the tests that cause each of them. **{shown} of 38 are shown**, {part} in part, {none}
not yet.

A row is shown if tests prove all that it must show, at least one of them where it counts: a unit test does not prove a
row that needs a cluster. Rows that are shown in part or not at all say what is missing. After `make setup`, everybody
can run a test again with the command beside it.

- **where**: a *local cluster* of containers with systemd and Slurm; an *AWS rehearsal* with machines (containers) in a
  simulated account; the *real engine* of Pulumi, without Slurm; *simulated AWS*, programs of ours against moto's
  server; *real processes* on one machine; *unit* tests of functions.
- **when**: `make test`, or only `make test-nightly`.
- **detect**, **recover**: seconds after the fault (recover: after its end if it lasts, such as that of a stopped
  database), as the test of the row measured them in its last recorded run
  (`{variable}=1`), on two cores with other work. They depend on the machine and on settings such as
  `slurmd_timeout_s`. {untimed}: there is nothing to measure, and the row says why.
"""
_PUBLISHED = """\
## Times that others publish

Not measured by us, and of clusters in a cloud, where another machine has to start.

| system | what | time | source |
|---|---|---|---|
| SageMaker HyperPod | detection of a bad node | 5 to 30 s | [1] |
| SageMaker HyperPod | replacement of a node | 20 to 30 min | [1] |
| SageMaker HyperPod | reboot of a node | 1 to 3 min | [1] |
| AWS ParallelCluster | limit for the replacement of a node (`node_replacement_timeout`) | 1800 s | [2] |
| AWS ParallelCluster | limit for a failing EC2 health check (`health_check_timeout`) | 180 s | [2] |
| AWS ParallelCluster | pause after a lack of capacity (`insufficient_capacity_timeout`) | 600 s | [2] |
| AWS ParallelCluster | a machine without a node is terminated (`orphaned_instance_timeout`) | 300 s | [2] |
| AWS ParallelCluster | from submission to start of a job on new machines | mean 285 s, 149 to 329 s | [3] |

1. `hyperpod-mental-model.md` in awslabs/awsome-distributed-ai.
2. Defaults in `src/slurm_plugin/clustermgtd.py` of aws/aws-parallelcluster-node.
3. `baseline/statistics.json` of the integration tests in aws/aws-parallelcluster.
"""


def render_page(tests: Sequence[MarkedTest], times: Sequence[Times]) -> str:
    """Return the whole page."""
    states = [judge_row(number, tests) for number in ROWS]
    head = _HEAD.format(
        shown=states.count("yes"),
        part=states.count("in part"),
        none=states.count("not yet"),
        variable=VARIABLE,
        untimed=NO_TIME,
    )
    overview = [
        "| row | fault | shown | where | when | detect | recover | lost |",
        "|---|---|---|---|---|---|---|---|",
        *(_render_line(number, tests, times) for number in ROWS),
    ]
    details = [text for number in ROWS for text in _render_details(number, tests, times)]
    return "\n\n".join([head.rstrip(), "\n".join(overview), _PUBLISHED.rstrip(), "## Rows", *details]) + "\n"


def judge_row(number: int, tests: Sequence[MarkedTest]) -> str:
    """Return whether a row is shown: `yes`, `in part` or `not yet`."""
    own = _select(number, tests)
    if not own:
        return "not yet"
    proves = any(test.place in ROWS[number].needs for test in own)
    return "yes" if proves and not ROWS[number].missing else "in part"


def _render_line(number: int, tests: Sequence[MarkedTest], times: Sequence[Times]) -> str:
    row, own, state = ROWS[number], _select(number, tests), judge_row(number, tests)
    # What does not count is in the details.
    counted = [test for test in own if test.place in row.needs] or own
    where = ", ".join(dict.fromkeys(test.place for test in counted))
    when = ", ".join(dict.fromkeys(_describe_when(test) for test in sorted(counted, key=lambda test: test.nightly)))
    recorded = [entry for entry in times if entry.row == number]
    cells = [
        f"[{number}](#row-{number})",
        row.fault,
        state,
        where,
        when,
        _format([entry.detect_s for entry in recorded], number) if own else "",
        _format([entry.recover_s for entry in recorded], number) if own else "",
        row.lost if own else "",
    ]
    return f"| {' | '.join(cells)} |"


def _render_details(number: int, tests: Sequence[MarkedTest], times: Sequence[Times]) -> Iterator[str]:
    row, own = ROWS[number], _select(number, tests)
    yield f"### Row {number}"
    yield f"**Fault:** {row.fault}. **Must show:** {row.must_show}."
    if own:
        yield f"**What happens:** {row.happens}. **Lost:** {row.lost}."
    if missing := _list_missing(row, own):
        yield f"**Not shown yet:** {'; '.join(missing)}."
    if row.untimed:
        yield f"**No times:** {row.untimed}."
    if own:
        lines = [f"| `{test.command}` | {test.place} | {_describe_when(test)} |" for test in own]
        yield "\n".join(["| test | where | when |", "|---|---|---|", *lines])
    for entry in times:
        if entry.row == number:
            measured = {"detected": entry.detect_s, "recovered": entry.recover_s}
            texts = [f"{what} after {seconds:g} s" for what, seconds in measured.items() if seconds is not None]
            yield f"Recorded on {entry.date} by `{entry.test.rpartition('::')[2]}`: {', '.join(texts)}."


def _list_missing(row: Row, own: Sequence[MarkedTest]) -> list[str]:
    is_elsewhere = own and not any(test.place in row.needs for test in own)
    return [*filter(None, [row.missing]), *([f"a test on a {row.needs[0]}"] if is_elsewhere else [])]


def _select(number: int, tests: Sequence[MarkedTest]) -> list[MarkedTest]:
    return [test for test in tests if number in test.rows]


def _describe_when(test: MarkedTest) -> str:
    return "nightly" if test.nightly else "`make test`"


def _format(seconds: Sequence[float | None], row: int) -> str:
    measured = sorted({value for value in seconds if value is not None})
    if not measured:
        return NO_TIME if ROWS[row].untimed else NOT_MEASURED
    return f"{measured[0]:g} s" if len(measured) == 1 else f"{measured[0]:g} to {measured[-1]:g} s"


if __name__ == "__main__":
    (REPO / PAGE).write_text(render_page(list_marked_tests(), read_times()))
