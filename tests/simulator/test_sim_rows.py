"""Tables of published runs: inferred values, invalid rows, and the files that predict writes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.__main__ import main
from simulator.rows.run import parse_run_row
from simulator.rows.run_table import ADDED_COLUMNS, predict_rows
from tests.harness import REPO

ROW = {
    "source": "synthetic", "system": "synthetic", "gpu_type": "h100", "gpus": "16", "gpus_per_node": "8", "nodes": "2",
    "layers": "32", "hidden": "4096", "heads": "32", "kv_heads": "8", "ffn": "14336", "gated_mlp": "1",
    "vocab": "128256", "seq": "4096", "tp": "2", "pp": "1", "dp": "8", "cp": "1", "micro_batch": "1",
    "global_batch": "64", "zero_stage": "1", "recompute": "none", "dtype": "bf16", "software": "Megatron-LM",
}  # fmt: skip


def predict_row(**changes: str) -> dict[str, str]:
    return predict_rows([{**ROW, **changes}])[0]


def test_complete_row_is_predicted_with_interval_and_memory() -> None:
    row = predict_row()
    low, step, high = (float(row[f"predicted_{name}_s"]) for name in ("low", "step_time", "high"))
    assert low < step < high
    assert float(row["predicted_memory_gb"]) > 1
    assert row["error"] == ""
    assert "inter_gb_s=400" in row["inferred"]


def test_missing_values_are_inferred_listed_and_widen_the_interval() -> None:
    blank_row = predict_row(micro_batch="", recompute="", global_batch="")
    assert {"micro_batch", "recompute", "global_batch"} <= {
        entry.split("=")[0] for entry in blank_row["inferred"].split("; ")
    }

    def width(row: dict[str, str]) -> float:
        return float(row["predicted_high_s"]) / float(row["predicted_low_s"])

    assert width(blank_row) > width(predict_row())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu_type": "tpu-v5"}, "gpu_type: 'tpu-v5'; allowed: v100, a100"),
        ({"gpu_type": ""}, "gpu_type: blank"),
        ({"tp": "3"}, "gpus: 16; allowed: a multiple of tp * pp * cp = 3"),
        ({"dp": "4"}, "dp * tp * pp * cp: 8; allowed: gpus = 16"),
        ({"gpus": "-16"}, "gpus: -16; allowed: whole numbers from 1"),
        ({"gpus": "nan"}, "gpus: nan; allowed: whole numbers"),
        ({"global_batch": "60"}, "global_batch: 60; allowed: multiples of micro_batch * dp = 8"),
        ({"heads": "33", "kv_heads": "33"}, "heads: 33; allowed: divisors of hidden = 4096"),
        ({"kv_heads": "5"}, "kv_heads: 5; allowed: divisors of heads = 32"),
        ({"layers": "28", "tp": "1", "pp": "8", "dp": "2"}, "pp: 8; allowed: divisors of layers = 28"),
        ({"layers": "1", "tp": "1", "pp": "2"}, "pp * virtual_stages: 2; allowed: up to layers = 1"),
        ({"layers": "5", "tp": "1", "pp": "8", "dp": "2"}, "pp * virtual_stages: 8; allowed: up to layers + 2 = 7"),
        ({"shard_size": "3"}, "shard_size: 3; allowed: divisors of dp * cp = 8"),
        ({"shard_size": "16"}, "shard_size: 16; allowed: divisors of dp * cp = 8"),
        ({"dtype": "int4"}, "dtype: 'int4'; allowed: fp32, tf32, fp16, bf16, fp8"),
        ({"gpu_type": "a100", "dtype": "fp8"}, "dtype: 'fp8' on a100; allowed: fp32, tf32, fp16, bf16"),
        ({"nodes": "1"}, "gpus: 16; allowed: at most gpus_per_node * nodes = 8"),
        ({"zero_stage": "4"}, "zero_stage: 4; allowed: whole numbers from 0 to 3"),
        ({"seq": ""}, "seq: blank"),
        ({"seq": "4095", "tp": "1", "dp": "8", "cp": "2"}, "cp: 2; allowed: divisors of seq = 4095"),
        ({"layers": "9000000", "hidden": "8388608", "ffn": "9000000"}, "allowed: 1e-06 to 1e+07 s"),
        ({"layers": "", "hidden": "", "model": "nobody-7x"}, "model: 'nobody-7x'; allowed: "),
    ],
)
def test_impossible_row_has_an_error_and_no_prediction(changes: dict[str, str], message: str) -> None:
    row = predict_row(**changes)
    assert message in row["error"]
    assert not any(row[name] for name in ADDED_COLUMNS if name != "error")


@pytest.mark.parametrize("software", ["Megatron-LM", "Megatron-DeepSpeed", "NeMo Megatron-Core"])
def test_inferred_virtual_stages_are_listed(software: str) -> None:
    pipeline = {"pp": "2", "dp": "4", "software": software}
    assert "virtual_stages=" in predict_row(**pipeline)["inferred"]
    assert "virtual_stages=" not in predict_row(**pipeline, virtual_stages="1")["inferred"]


@pytest.mark.parametrize("software", ["Megatron-LM", "NeMo Megatron-Core"])
def test_embedding_and_loss_may_be_separate_stages(software: str) -> None:
    row = predict_row(gpus="160", nodes="20", layers="8", pp="10", software=software)
    assert not row["error"]
    assert float(row["predicted_step_time_s"]) > 0


def test_node_larger_than_its_nvlink_domain_is_predicted() -> None:
    wide = predict_row(gpus="64", dp="32", gpus_per_node="64", nodes="1", nvlink_domain="32")
    assert not wide["error"]
    assert (
        wide["predicted_step_time_s"]
        == predict_row(gpus="64", dp="32", gpus_per_node="64", nodes="1")["predicted_step_time_s"]
    )


@pytest.mark.parametrize(
    ("published_name", "name"),
    [("H100", "h100"), ("NVIDIA H100-SXM5-80GB", "h100"), ("b200", "b200"), ("a100-40gb", "a100-40gb")],
)
def test_published_gpu_names_are_recognized(published_name: str, name: str) -> None:
    assert parse_run_row({**ROW, "gpu_type": published_name}).system.gpu.name == name


@pytest.mark.parametrize("name", ["Llama 3.1 8B", "llama3_8b", "Llama-3-8B"])
def test_published_model_names_are_recognized(name: str) -> None:
    blank = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "ffn", "gated_mlp", "vocab"), "")
    described = parse_run_row({**ROW, **blank, "model": name})
    assert (described.model.layers, described.model.hidden) == (32, 4096)
    assert "model=32x4096" in described.inferred


CELL = st.one_of(st.sampled_from(["", "0", "1", "2", "3", "8", "-1", "1e9", "inf", "x", "0.5"]), st.text(max_size=6))


@given(changes=st.dictionaries(st.sampled_from(sorted(ROW)), CELL, max_size=6))
def test_an_invalid_row_does_not_stop_the_others(changes: dict[str, str]) -> None:
    row = predict_row(**changes)
    assert bool(row["error"]) != bool(row["predicted_step_time_s"])


def test_predict_reads_and_writes_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROW))
        writer.writeheader()
        writer.writerows([ROW, {**ROW, "gpu_type": "abacus"}])
    assert main(["predict", "--runs", str(table), "--out", str(out)]) == 0
    assert "1 of 2 rows predicted, 1 with an error" in capsys.readouterr().out
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*ROW, *ADDED_COLUMNS]
    assert rows[1]["error"].startswith("gpu_type: 'abacus'")


def test_table_can_be_overwritten_and_survives_a_full_disk(tmp_path: Path) -> None:
    table = tmp_path / "in.csv"
    table.write_text("model,gpu_type,gpus,seq\nllama-8b,h100,64,4096\n")
    before = table.read_text()
    line = f"ulimit -f 0 && {sys.executable} -B -m simulator predict --runs {table} --out {table}"
    full = subprocess.run(["bash", "-c", line], text=True, capture_output=True, cwd=REPO, check=False)
    assert (full.returncode, table.read_text()) == (2, before), full.stderr
    assert f"--out: {table} (File too large); allowed: a file that can be written" in full.stderr
    assert main(["predict", "--runs", str(table), "--out", str(table)]) == 0
    assert "predicted_step_time_s" in table.read_text()
    assert list(tmp_path.iterdir()) == [table]


def test_writing_a_table_keeps_link_and_mode(tmp_path: Path) -> None:
    table, private, link = (tmp_path / name for name in ("in.csv", "private.csv", "link.csv"))
    table.write_text("model,gpu_type,gpus,seq\nllama-8b,h100,64,4096\n")
    private.touch(mode=0o600)
    link.symlink_to(private)
    for out in (private, link):
        assert main(["predict", "--runs", str(table), "--out", str(out)]) == 0
        assert "predicted_step_time_s" in private.read_text()
        assert private.stat().st_mode & 0o777 == 0o600
        private.write_text("")
    assert link.is_symlink()
    command = [sys.executable, "-m", "simulator", "predict", "--runs", str(table), "--out", "/dev/stdout"]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=REPO, check=True).stdout
    assert "predicted_step_time_s" in output.splitlines()[0]
    assert Path("/dev/stdout").is_symlink()


def test_predict_fails_if_no_row_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, out = tmp_path / "in.csv", tmp_path / "out.csv"
    table.write_text("model,gpu_type,gpus,seq_len,mood\nllama-8b,h100,64,4096,fine\nllama-8b,h100,8,4096,fine\n")
    assert main(["predict", "--runs", str(table), "--out", str(out)]) == 1
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        "simulator: column 'seq_len' is not read; did you mean 'seq'?",
        "simulator: column 'mood' is not read",
        "simulator: no row could be predicted; the first: seq: blank; allowed: a value; fill it in",
    ]
    assert "0 of 2 rows predicted" in output.out
    table.write_text("model,gpu_type,gpus,seq\nllama-8b,h100,64,4096\n")
    assert main(["predict", "--runs", str(table), "--out", str(out)]) == 0
    assert capsys.readouterr().err == ""


def test_evaluate_requires_measured_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "in.csv"
    table.write_text("model,gpu_type,gpus,seq\nllama-8b,h100,64,4096\n")
    assert main(["evaluate", str(table)]) == 2
    message = capsys.readouterr().err
    assert "column step_time_s: missing; allowed: one of step_time_s, tokens_per_s_per_gpu, memory_gb" in message
    assert f"simulator predict --runs {table} --out OUT.csv" in message
