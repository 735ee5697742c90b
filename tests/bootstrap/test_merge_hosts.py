"""The names of the cluster in /etc/hosts: they replace only names, and the owner's lines come back without them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bootstrap.changes import SCRIPT, parse_restorations
from bootstrap.steps.hosts import MERGE

OURS = "0.0.0.0 any-address\n10.1.0.10 controller\n10.1.0.21 gpu-1\n10.1.0.21 rack1\n"
OWNERS = """\
127.0.0.1\tlocalhost rack1
127.0.1.1\track1
10.1.0.21 rack1.example.com rack1 www # rack1 and gpu-1

# 10.9.9.9 gpu-1
10.9.9.8 nas # next to controller
::1 localhost ip6-localhost
"""
MERGED = """\
# muster replaced: 127.0.0.1\tlocalhost rack1
# muster replaced: 127.0.1.1\track1
# muster replaced: 10.1.0.21 rack1.example.com rack1 www # rack1 and gpu-1

# 10.9.9.9 gpu-1
10.9.9.8 nas # next to controller
::1 localhost ip6-localhost
# muster begin
0.0.0.0 any-address
10.1.0.10 controller
10.1.0.21 gpu-1
10.1.0.21 rack1
127.0.0.1 localhost
10.1.0.21 rack1.example.com www # rack1 and gpu-1
# muster end
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    (tmp_path / "temporary").mkdir()
    (tmp_path / "names").write_text(OURS)
    (tmp_path / "hosts").write_text(OWNERS)
    return tmp_path / "hosts"


def merge(hosts: Path, *options: str) -> int:
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_NAMES": str(hosts.parent / "names"),
        "MUSTER_HOSTS": str(hosts),
        "TMPDIR": str(hosts.parent / "temporary"),
    }
    return subprocess.run(["sh", "-c", MERGE, "merge-hosts", *options], env=environment, check=False).returncode


def journal(hosts: Path, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_RECORD": str(hosts.parent / "record"),
        "MUSTER_BACKUPS": str(hosts.parent / "backups"),
        "MUSTER_NOLOGIN": str(hosts.parent / "nologin"),
    }
    command = ["sh", "-c", SCRIPT, "journal", *arguments]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_only_names_are_taken_out_of_other_lines(hosts: Path) -> None:
    assert merge(hosts, "--check") == 1
    for _ in range(2):
        assert merge(hosts) == 0
        assert hosts.read_text() == MERGED
        assert merge(hosts, "--check") == 0
    assert list((hosts.parent / "temporary").iterdir()) == []


def test_a_name_that_is_no_longer_ours_is_the_owners_again(hosts: Path) -> None:
    merge(hosts)
    (hosts.parent / "names").write_text("10.1.0.10 controller\n")
    merge(hosts)
    assert hosts.read_text() == f"{OWNERS}# muster begin\n10.1.0.10 controller\n# muster end\n"


@pytest.mark.parametrize("content", [OWNERS, "127.0.0.1 localhost", "", None])
def test_the_file_is_restored(hosts: Path, content: str | None) -> None:
    if content is None:
        hosts.unlink()
    else:
        hosts.write_text(content)
    journal(hosts, "before", f"block:{hosts}")
    hosts.touch()
    merge(hosts)
    journal(hosts, "after", f"block:{hosts}")
    [restored] = parse_restorations(journal(hosts, "restore"))
    assert (restored.outcome, restored.remark) == ("removed" if content is None else "restored", "")
    assert (hosts.read_text() if hosts.exists() else None) == content


def test_what_the_owner_has_added_stays_without_our_names(hosts: Path) -> None:
    journal(hosts, "before", f"block:{hosts}")
    merge(hosts)
    hosts.write_text(f"10.9.9.1 added\n{hosts.read_text()}10.9.9.2 added-later\n")
    merge(hosts)
    [restored] = parse_restorations(journal(hosts, "restore"))
    assert (restored.outcome, restored.remark) == ("restored", "without muster's lines; the changes since stay")
    assert hosts.read_text() == f"10.9.9.1 added\n{OWNERS}10.9.9.2 added-later\n"


def test_a_file_without_our_lines_is_left(hosts: Path) -> None:
    journal(hosts, "before", f"block:{hosts}")
    merge(hosts)
    hosts.write_text("10.9.9.1 replaced\n")
    [left] = parse_restorations(journal(hosts, "restore"))
    backup = Path(f"{hosts.parent}/backups{hosts}")
    assert (left.outcome, left.remark) == ("left", f"changed since; the original is {backup}")
    assert (hosts.read_text(), backup.read_text()) == ("10.9.9.1 replaced\n", OWNERS)
