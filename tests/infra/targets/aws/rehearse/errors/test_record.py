"""The record of covered pairs survives a kill: nothing that was recorded before is lost, and it can be continued."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.record import Record

FIRST, SECOND = Pair("up", "ec2 CreateVpc", "AccessDenied"), Pair("up", "ec2 CreateVpc", "SlowDown")
# Records pairs for ever, and says which: only what it has said must be there after a kill.
WRITER = """
import sys
from itertools import count
from pathlib import Path
from infra.targets.aws.rehearse.errors.pair import Pair
from infra.targets.aws.rehearse.errors.record import Record

for number in count():
    Record(Path(sys.argv[1])).add({Pair("up", f"ec2 Call{number}", "SlowDown"): "retried"})
    print(number, flush=True)
"""


def test_pairs_of_all_rehearsals_add_up(tmp_path: Path) -> None:
    record = Record(tmp_path / "new" / "record")
    assert record.read() == {}
    record.add({FIRST: "explained"})
    record.add({})
    record.add({SECOND: "retried"})
    assert record.read() == {FIRST: "explained", SECOND: "retried"}


def test_half_a_line_is_ignored_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.add({FIRST: "explained"})
    record.add({SECOND: "retried"})
    whole = record.path.read_bytes()
    record.path.write_bytes(whole[:-5])
    assert record.read() == {FIRST: "explained"}
    record.add({SECOND: "accepted"})
    assert record.read() == {FIRST: "explained", SECOND: "accepted"}


def test_lines_that_are_no_pairs_are_ignored(tmp_path: Path) -> None:
    record = Record(tmp_path / "record")
    record.path.write_text('{}\n["2026-11-18", "up", "ec2 CreateVpc", "SlowDown", "forgotten"]\n["up"]\n\n')
    assert record.read() == {}


def test_a_killed_process_loses_nothing_that_it_has_recorded(tmp_path: Path) -> None:
    path, last = tmp_path / "record", 200
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout
        for line in writer.stdout:
            if int(line) == last:
                writer.kill()
                break
        printed = {last, *map(int, writer.stdout)}
    pairs = set(Record(path).read())
    assert {Pair("up", f"ec2 Call{number}", "SlowDown") for number in range(max(printed) + 1)} <= pairs
