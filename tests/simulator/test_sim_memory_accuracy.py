"""Predicted memory against published measurements, and activations against our trainer on one H200."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.fit.memory_errors import DATA, FILES, judge_capacity, main, memory_errors_by_source, read_tables
from simulator.layout import Layout
from simulator.memory.activations import activation_bytes, logit_bytes
from simulator.model import Transformer

LLAMA = Transformer(
    layers=6, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, vocab=128256, seq=4096,
)  # fmt: skip
NARROW = replace(LLAMA, hidden=2048, ffn=8192)
NEW = DATA / "memory_new.csv"
GPT2 = Transformer(layers=6, hidden=2048, heads=16, kv_heads=16, ffn=8192, gated=False, vocab=512, seq=1024, tied=True)

STORED_BYTES = [
    (LLAMA, "none", False, 173533),
    (LLAMA, "selective", False, 102528),
    (LLAMA, "full", False, 8192),
    (LLAMA, "none", True, 147592),
    (LLAMA, "selective", True, 94336),
    (LLAMA, "full", True, 8192),
    (NARROW, "none", False, 96392),
    (GPT2, "none", False, 65616),
    (GPT2, "selective", False, 45120),
]
"""Bytes per token and layer after forward, from the difference of six and three layers: torch 2.11, one H200, bf16."""


@pytest.mark.parametrize(("model", "recompute", "compiled", "measured"), STORED_BYTES)
def test_stored_activations_match_the_trainer(
    model: Transformer, recompute: str, compiled: bool, measured: float
) -> None:
    layout = Layout(recompute=recompute, compiled=compiled)
    activations, _ = activation_bytes(model, layout, 0, first=True)
    assert activations / model.seq / model.layers == pytest.approx(measured, rel=0.03)


def test_logits_at_the_loss_match_the_trainer() -> None:
    """Measured with 16,384 tokens: a peak of 28.73 GB, including 2.98 GB of weights and 0.3 GB of layer inputs."""
    held = logit_bytes(LLAMA, Layout(micro_batch=4, global_batch=4))
    assert held == pytest.approx(28.73e9 - 2.98e9 - 0.3e9, rel=0.03)


def test_published_memory_is_predicted() -> None:
    """Bounds for the figures of docs/simulator-validation.md."""
    errors = {source_errors.source: source_errors for source_errors in memory_errors_by_source(read_tables(FILES))}
    assert errors["simumax"].median <= 0.01
    assert errors["torchtitan"].median <= 0.03
    assert errors["kempnerforge_h200"].median <= 0.05
    assert errors["trainy_h200"].median <= 0.05
    assert errors["all"].median <= 0.03
    assert errors["all"].p90 <= 0.15


def test_memory_of_sources_collected_after_the_model_is_predicted() -> None:
    errors = {source_errors.source: source_errors for source_errors in memory_errors_by_source(read_tables([NEW]))}
    assert len(errors["all"].errors) >= 80
    assert errors["all"].median <= 0.03
    assert errors["all"].p90 <= 0.10
    for source in ("megatron_tutorials", "megatron_tests", "torchtitan_2025", "kempnerforge_2026", "torchtune"):
        assert errors[source].median <= 0.05, source


def test_memory_of_runs_collected_for_their_step_times_is_predicted() -> None:
    errors = {
        source_errors.source: source_errors
        for source_errors in memory_errors_by_source(read_tables([DATA / "new_runs.csv"]))
    }
    assert errors["all"].median <= 0.05
    assert errors["bigscience_a100"].median <= 0.06
    assert errors["nanotron"].median <= 0.08


def test_memory_is_predicted_for_unknown_trainers() -> None:
    errors = {
        source_errors.source: source_errors
        for source_errors in memory_errors_by_source(read_tables(FILES), unknown_trainers=True)
    }
    assert errors["all"].median <= 0.05
    assert errors["all"].p90 <= 0.25
    assert errors["torchtitan"].median <= 0.05
    assert errors["kempnerforge_2026"].median <= 0.08


def test_missing_file_and_file_without_measurements_are_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "no.csv")]) == 2
    assert capsys.readouterr().err == (
        f"simulator: file: {tmp_path}/no.csv does not exist; allowed: a CSV file; name another\n"
    )
    (tmp_path / "empty.csv").write_text("model,seq,gpus,gpu_type,memory_gb\nllama-8b,4096,8,h100,\n")
    assert main([str(tmp_path / "empty.csv")]) == 2
    assert "none with a measured memory_gb" in capsys.readouterr().err


def test_command_prints_each_source_and_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(NEW), "--unknown"]) == 0
    out = capsys.readouterr().out
    assert "| megatron_tutorials | 46 |" in out
    assert "| all | " in out


def test_memory_matches_the_megatron_paper() -> None:
    from simulator.memory.peak import GIB, predict_memory  # noqa: PLC0415  # only this test needs it
    from simulator.rows.run import parse_run_row  # noqa: PLC0415  # only this test needs it

    for row in read_tables(FILES):
        if not row["memory_activations_gb"]:
            continue
        described = parse_run_row(row)
        activations, _ = activation_bytes(described.model, described.layout, 0, first=True)
        assert activations / GIB == pytest.approx(float(row["memory_activations_gb"]), rel=0.01)
        if row["memory_weights_gb"]:
            parts = predict_memory(described.model, described.layout, described.system).parts
            state = parts["weights"] + parts["gradients"] + parts["optimizer"]
            assert state / GIB == pytest.approx(float(row["memory_weights_gb"]), rel=0.09)


def test_all_out_of_memory_runs_are_predicted_with_few_false_alarms() -> None:
    verdicts = judge_capacity(read_tables(FILES[:2]))
    assert verdicts.failed_fits == 0
    assert verdicts.ran_not <= 0.05 * (verdicts.ran_not + verdicts.ran_fits)


def test_most_new_out_of_memory_runs_are_predicted() -> None:
    """Three of four are predicted; the fourth is GPT-2 XL with 16 samples, where 15 samples took 77 of 80 GiB."""
    verdicts = judge_capacity(read_tables([NEW]))
    assert (verdicts.failed_not, verdicts.failed_fits) == (3, 1)
