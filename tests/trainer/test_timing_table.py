"""The table of measured all-reduces: what `auto` takes from it, and files that cannot be used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.trainer.ranks import on_ranks
from trainer.collectives.choice import Choice, choose_pattern
from trainer.collectives.measure import detect_topology, load_table, measure_table
from trainer.collectives.timing_table import (
    TableError,
    TimingTable,
    Topology,
    default_folder,
    describe_nodes,
    parse_seconds,
    read_table,
    write_table,
)
from trainer.measure_command import _save, format_times, main

HERE = "tests.trainer.test_timing_table"
TOPOLOGY = Topology("2x2", "x86_64 x 2", "eth0:1000", "2.15.0")
TABLE = TimingTable({"backend": {1000: 1.0, 2000: 3.0}, "tree": {1000: 0.5, 2000: 3.5}, "ring": {1000: 1.0, 2000: 3.0}})


def test_times_between_measured_sizes_are_interpolated() -> None:
    assert [TABLE.estimate("backend", size) for size in (1, 1000, 1500, 2000, 4000)] == [1.0, 1.0, 2.0, 3.0, 6.0]


def test_auto_takes_the_fastest_method_of_the_table() -> None:
    def choose(size: int, table: TimingTable) -> Choice:
        return choose_pattern("auto", size, ranks=4, ranks_per_node=2, table=table)

    assert choose(1400, TABLE) == Choice("tree")
    # Backend and ring take the same time.
    assert choose(1 << 30, TABLE) == Choice("backend")
    assert choose(8, parse_seconds({"hierarchical": {"1": 1}, "ring": {"1": 2}})) == Choice("hierarchical", 2)
    # What is set has precedence.
    assert choose_pattern("ring", 8, ranks=4, ranks_per_node=2, table=TABLE) == Choice("ring")


def test_the_choice_is_described_for_people() -> None:
    assert TABLE.describe() == "tree up to 0 KB, then backend"
    assert parse_seconds(
        {"tree": {str(2 << 20): 1, "9999999": 2}, "ring": {str(2 << 20): 2, "9999999": 1}}
    ).describe() == ("tree up to 2 MB, then ring")
    assert parse_seconds({"ring": {"4096": 1}}).describe() == "ring"
    assert "fastest" in format_times(TABLE)
    assert describe_nodes(["a", "a", "b", "b"]) == "2x2"
    assert describe_nodes(["a", "a", "b"]) == "2+1"
    assert describe_nodes(["a", "b", "a", "b"]) == "2x2 interleaved"


def test_a_table_is_read_only_on_its_own_topology(tmp_path: Path) -> None:
    assert read_table(tmp_path, TOPOLOGY) is None
    path = write_table(tmp_path / "new", TOPOLOGY, TABLE)
    assert read_table(tmp_path / "new", TOPOLOGY) == TABLE
    other = Topology("4x1", TOPOLOGY.host, TOPOLOGY.network, TOPOLOGY.torch)
    assert read_table(tmp_path / "new", other) is None
    path.rename(path.with_name(other.file_name))
    with pytest.raises(TableError, match=r"was measured on another topology$"):
        read_table(tmp_path / "new", other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "cannot be read"),
        ("[1]", "has another format than 2"),
        ('{"format": 0}', "has another format than 2"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_damaged_file_is_refused_with_the_reason(tmp_path: Path, content: str, message: str) -> None:
    path = write_table(tmp_path, TOPOLOGY, TABLE)
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(TableError, match=message):
        read_table(tmp_path, TOPOLOGY)


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (None, "seconds is not a table of methods and sizes"),
        ({}, "seconds is not a table of methods and sizes"),
        ({"ring": 1}, "seconds is not a table of methods and sizes"),
        ({"star": {"1": 1}}, "unknown method star; allowed: backend, ring, halving_doubling, tree, hierarchical"),
        ({"ring": {"one": 1}}, "sizes and seconds are not all numbers"),
        ({"ring": {"1": 10**400}}, "sizes and seconds are not all numbers"),
        ({"ring": {"1": None}}, "sizes and seconds are not all numbers"),
        ({"ring": {}}, "methods have different sizes, or none"),
        ({"ring": {"1": 1}, "tree": {"2": 1}}, "methods have different sizes, or none"),
        ({"ring": {"2": 1, "1": 1}}, "sizes are not positive and in rising order"),
        ({"ring": {"0": 1}}, "sizes are not positive and in rising order"),
        ({"ring": {"1": float("nan")}}, "seconds are not all positive"),
        ({"ring": {"1": 0}}, "seconds are not all positive"),
    ],
)
def test_values_that_are_no_times_are_refused(tmp_path: Path, seconds: Any, message: str) -> None:
    with pytest.raises(TableError) as refusal:
        parse_seconds(seconds)
    assert str(refusal.value) == message
    path = write_table(tmp_path, TOPOLOGY, TABLE)
    path.write_text(json.dumps({**json.loads(path.read_text()), "seconds": seconds}))
    with pytest.raises(TableError, match=f"{path.name}: "):
        read_table(tmp_path, TOPOLOGY)


def test_a_reader_sees_a_whole_table_while_others_write(tmp_path: Path) -> None:
    tables = [TimingTable({"ring": {size: float(number) for size in range(1, 500)}}) for number in (1, 2)]
    write_table(tmp_path, TOPOLOGY, tables[0])

    def write(table: TimingTable) -> None:
        for _ in range(30):
            write_table(tmp_path, TOPOLOGY, table)

    writers = [threading.Thread(target=write, args=(table,)) for table in tables]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert read_table(tmp_path, TOPOLOGY) in tables
    assert [path.name for path in tmp_path.iterdir()] == [TOPOLOGY.file_name]


def test_a_single_rank_has_nothing_to_measure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "a single rank has nothing to exchange; start it with torchrun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [("--rounds", "0"), ("--rounds", "few"), ("--mebibytes", "0"), ("--timeout", "0"), ("--timeout", "-1")],
)
def test_options_out_of_range_are_refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option, value])
    assert option in capsys.readouterr().err


@pytest.mark.nightly
def test_the_command_writes_the_table_of_its_ranks(tmp_path: Path) -> None:
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--local-addr=127.0.0.1",
        "--nproc-per-node=2",
    ]
    command = [*torchrun, "-m", "trainer", "measure-collectives", "--rounds", "1", "--mebibytes", "0.25", "0.01"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "muster" / "collectives").iterdir()
    content = json.loads(file.read_text())
    assert content["topology"]["nodes"] == "1x2"
    assert list(content["seconds"]["ring"]) == ["10484", "262144"]
    assert f"written to {file}" in done.stdout
    # A line for each size as soon as it is measured, then the table.
    assert re.match(r"10 KB: backend [\d.]+ ms, ring .*\n256 KB: backend .*\n\nsize ", done.stdout), done.stdout


def test_a_home_that_does_not_exist_is_a_reason_to_use_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "~no-such-user/cache")
    with pytest.raises(TableError, match=r"there is no home folder for ~no-such-user/cache; set XDG_CACHE_HOME"):
        default_folder()
    assert _save(TOPOLOGY, TABLE) == 1
    assert "the table cannot be written: there is no home folder" in capsys.readouterr().err


def measure_and_load(hosts: list[str], cache: str) -> list[Any]:
    """Load without a table, measure, write on rank 0, load again, and load a damaged table."""
    with pytest.MonkeyPatch.context() as patch:
        # Only the first rank reads. Without a home, it goes on without a table.
        patch.setenv("XDG_CACHE_HOME", "~no-such-user")
        homeless = load_table(hosts, None)
        assert homeless == (
            None,
            "by its rule: there is no home folder for ~no-such-user; set XDG_CACHE_HOME to a folder",
        )
        patch.setenv("XDG_CACHE_HOME", cache if dist.get_rank() == 0 else "/nowhere")

        results: list[Any] = [load_table(hosts, None)]
        topology, sizes = detect_topology(hosts, None), list[int]()
        table = measure_table(hosts, None, (4096, 65536), rounds=2, on_size=lambda size, _: sizes.append(size))
        assert sizes == [4096, 65536]
        path = write_table(default_folder(), topology, table) if dist.get_rank() == 0 else None
        results.append(load_table(hosts, None))
        assert results[-1][0] == table
        if path:
            path.write_text("{")
        return [*results, load_table(hosts, None)]


@pytest.mark.parametrize(
    ("hosts", "nodes", "has_hierarchy"),
    [(["a", "a", "b", "b"], "2x2", True), (["a"] * 4, "1x4", False), (["a", "a", "a", "b"], "3+1", False)],
)
def test_ranks_measure_and_load_the_same_table(
    tmp_path: Path, hosts: list[str], nodes: str, has_hierarchy: bool
) -> None:
    by_rank = on_ranks(f"{HERE}:measure_and_load", hosts=hosts, cache=str(tmp_path))
    assert all(results == by_rank[0] for results in by_rank)
    before, after, damaged = by_rank[0]
    assert before == (
        None,
        f"by its rule: no times were measured on {nodes} ranks; `trainer measure-collectives` measures them",
    )
    assert list(after[0].seconds) == [
        *("backend", "ring", "halving_doubling", "tree"),
        *(["hierarchical"] if has_hierarchy else []),
    ]
    assert after[1].startswith(f"by the times measured on {nodes} ranks: ")
    assert damaged[0] is None
    assert "cannot be read" in damaged[1]
