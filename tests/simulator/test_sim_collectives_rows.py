"""Tables of collectives: inferred values, rejected rows, and the commands on the committed tables."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.rows.cells import RowError
from simulator.rows.collective_table import parse_collective_row, predict_rows

ROW = {
    "system": "dgx",
    "gpu_type": "h100",
    "gpus": "16",
    "gpus_per_node": "8",
    "nodes": "2",
    "nvlink_domain": "8",
    "interconnect": "InfiniBand 8x400Gbps/node",
    "intra_gb_s": "450",
    "inter_gb_s": "400",
    "op": "all_reduce",
    "bytes": "1073741824",
    "time_us": "4700",
}
DATA = Path(__file__).parents[2] / "simulator" / "data" / "collectives.csv"


def test_complete_row_infers_nothing() -> None:
    question = parse_collective_row(ROW)
    assert (question.op, question.size, question.group.ranks, question.group.per_node) == ("all_reduce", 2**30, 16, 8)
    assert (question.system.network, question.system.cards, question.inferred) == ("infiniband", 8, ())


def test_missing_values_are_inferred_and_listed() -> None:
    bare = {**ROW, "gpus_per_node": "", "intra_gb_s": "", "inter_gb_s": "", "nvlink_domain": ""}
    question = parse_collective_row(bare)
    assert question.inferred == ("gpus_per_node=8", "inter_gb_s=400", "intra_gb_s=450")
    assert question.time_us == parse_collective_row(ROW).time_us


@pytest.mark.parametrize(
    ("spelling", "op"),
    [
        ("AllReduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("reduce-scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("sendrecv", "send"),
        ("Broadcast", "broadcast"),
        ("reduce", "reduce"),
    ],
)
def test_spellings_of_collectives_are_recognized(spelling: str, op: str) -> None:
    assert parse_collective_row({**ROW, "op": spelling}).op == op


@pytest.mark.parametrize("spelling", ["H100", "NVIDIA H100 80GB HBM3", "H100-SXM5-80GB", "nvidia_h100"])
def test_driver_names_of_gpus_are_recognized(spelling: str) -> None:
    assert parse_collective_row({**ROW, "gpu_type": spelling}).time_us == parse_collective_row(ROW).time_us


def test_inferred_network_is_listed() -> None:
    assert parse_collective_row({**ROW, "interconnect": ""}).inferred == ("interconnect=infiniband",)


def test_missing_columns_count_as_blank() -> None:
    assert (
        parse_collective_row(
            {name: ROW[name] for name in ("gpu_type", "gpus", "op", "bytes", "interconnect")}
        ).group.ranks
        == 16
    )


@pytest.mark.parametrize(
    "changes",
    [{"gpu_type": "v100", "intra_gb_s": "150", "nvlink_domain": "64"}, {"gpu_type": "l40s", "intra_gb_s": "450"}],
)
def test_an_invalid_row_does_not_stop_the_others(changes: dict[str, str]) -> None:
    odd, usual = predict_rows([{**ROW, **changes}, ROW])
    assert bool(odd["error"]) != bool(odd["predicted_time_us"])
    assert usual["predicted_time_us"]


def test_single_process_launches_on_its_gpus_in_turn() -> None:
    node = {**ROW, "gpu_type": "a100", "gpus": "8", "nodes": "1", "bytes": "8"}
    apart = parse_collective_row({**node, "note": "one process per GPU"})
    assert parse_collective_row(node).time_us == pytest.approx(apart.time_us + 24)


def test_launches_overlap_with_large_transfers() -> None:
    """Eight H100s in one process take 46 us from 1 to 4 MiB; above, they take as long as eight processes."""
    node = {**ROW, "gpus": "8", "nodes": "1"}
    small, large = ({**node, "bytes": size} for size in ("8", "1073741824"))
    assert parse_collective_row(small).time_us == pytest.approx(44.8)
    assert parse_collective_row(large).time_us == parse_collective_row({**large, "note": "one process per GPU"}).time_us


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"op": "all_redcue"},
            "op: 'all_redcue'; allowed: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, send",
        ),
        ({"op": ""}, "op: blank"),
        ({"bytes": ""}, "bytes: blank"),
        ({"bytes": "0"}, "bytes: 0; allowed: whole numbers from 1"),
        ({"bytes": "-5"}, "bytes: -5; allowed"),
        ({"bytes": "many"}, "bytes: 'many'; allowed: a whole number"),
        ({"bytes": "nan"}, "bytes: nan; allowed"),
        ({"bytes": "inf"}, "bytes: inf; allowed"),
        ({"bytes": "1e30"}, "bytes: 1e30; allowed"),
        ({"gpus": "1"}, "gpus: 1; allowed: whole numbers from 2"),
        ({"gpus": "12", "nodes": ""}, "gpus: 12; allowed: multiples of gpus_per_node = 8, or fewer"),
        ({"nodes": "3"}, "nodes: 3; allowed: gpus / gpus_per_node = 2"),
        ({"gpu_type": "h1000"}, "gpu: 'h1000'; allowed: v100, "),
        ({"gpu_type": ""}, "gpu_type: blank"),
        (
            {"inter_gb_s": "", "interconnect": "InfiniBand"},
            "inter_gb_s: blank; allowed: GB/s of a node's",
        ),
        ({"inter_gb_s": "-1"}, "inter_gb_s: -1; allowed: above 0"),
    ],
)
def test_invalid_row_is_rejected(change: dict[str, str], message: str) -> None:
    with pytest.raises(RowError) as error:
        parse_collective_row({**ROW, **change})
    assert str(error.value).startswith(message)
    prediction = predict_rows([{**ROW, **change}])[0]
    assert prediction["predicted_time_us"] == ""
    assert prediction["error"] == str(error.value)


def test_predict_adds_its_columns_to_every_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main(["predict", "--collectives", str(DATA), "--out", str(out)]) == 0
    with DATA.open() as table, out.open() as predictions:
        before, after = list(csv.DictReader(table)), list(csv.DictReader(predictions))
    assert [row["coll_id"] for row in after] == [row["coll_id"] for row in before]
    assert all(bool(row["error"]) != bool(row["predicted_time_us"]) for row in after)
    assert {row["system"] for row in after if row["error"]} == {"unnamed_4_nodes", "h200_nvlink_node"}
    assert f"of {len(before)} rows predicted" in capsys.readouterr().out


def test_evaluate_prints_errors_by_system(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(DATA)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["system", "rows", "answered", "median", "%", "p90", "%", "bias", "%"]
    assert [line.split()[0] for line in lines[1:3]] == ["a100_node_83e1", "a100_node_dkh"]
    assert lines[-1].startswith("all")
    unnamed = next(line.split() for line in lines if line.startswith("unnamed_4_nodes"))
    assert unnamed[1:6] == ["15", "0", "-", "-", "-"]
    assert " ".join(unnamed[6:]) == "no answer: gpu_type: blank"
    assert "nan" not in "\n".join(lines)


UNMEASURED_COLUMNS = "gpu_type,gpus,interconnect,op,bytes"


@pytest.mark.parametrize("more", [[], ["--cross-validate"]])
def test_evaluate_requires_measured_times(more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ask.csv"
    file.write_text(f"{UNMEASURED_COLUMNS}\nh100,64,InfiniBand 8x400Gbps/node,all_reduce,1073741824\n")
    assert main(["evaluate", str(file), *more]) == 2
    message = capsys.readouterr().err
    assert "simulator: column time_us: missing; allowed: a column of measured microseconds; add it, or" in message
    assert f"simulator predict --collectives {file} --out OUT.csv" in message


def test_invalid_times_are_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ask.csv"
    file.write_text(
        f"{UNMEASURED_COLUMNS},time_us\nh100,8,,all_reduce,1073741824,soon\nh100,8,,all_reduce,1073741824,\n"
    )
    assert main(["evaluate", str(file)]) == 2
    assert "rows: none of 1 MB or more with a time_us; allowed: one or more" in capsys.readouterr().err
    file.write_text(f"{UNMEASURED_COLUMNS},time_us\nh100,8,,all_reduce,1073741824,5000\n")
    assert main(["evaluate", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["h100", "1", "1"]


def test_evaluate_cross_validates_by_system(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head, *rows = DATA.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([head, *(row for row in rows if row.startswith(("nebius_h100", "runai_h200")))]))
    assert main(["evaluate", str(few), "--cross-validate"]) == 0
    output = capsys.readouterr()
    assert [line.split()[:2] for line in output.out.splitlines()[-3:]] == [
        ["nebius_h100", "10"],
        ["runai_h200", "5"],
        ["all", "15"],
    ]
    assert "without nebius_h100 (2 of 2)" in output.err
    few.write_text("\n".join([head, *(row for row in rows if row.startswith("runai_h200"))]))
    assert main(["evaluate", str(few), "--cross-validate"]) == 2
    assert "systems: 1 with measured times; allowed: two or more" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "op,bytes\n", "op,bytes\n1,2,3\n"])
def test_invalid_csv_is_rejected(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "in.csv"
    file.write_text(text)
    assert main(["predict", "--collectives", str(file), "--out", str(tmp_path / "out.csv")]) == 2
    assert main(["evaluate", str(file)]) == 2
    assert "allowed: " in capsys.readouterr().err


def test_unreadable_file_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "no.csv"
    assert main(["predict", "--collectives", str(file), "--out", str(tmp_path / "out.csv")]) == 2
    assert capsys.readouterr().err == f"simulator: file: {file} does not exist; allowed: a CSV file; name another\n"
    assert main(["evaluate", str(tmp_path)]) == 2
    message = f"simulator: file: {tmp_path} cannot be read (Is a directory); allowed: a CSV file; name another\n"
    assert capsys.readouterr().err == message


def test_unwritable_output_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--collectives", str(DATA), "--out", str(tmp_path / "no" / "out.csv")]) == 2
    assert "simulator: --out: " in (message := capsys.readouterr().err)
    assert f"allowed: a file in a folder that exists; create {tmp_path / 'no'} first" in message
