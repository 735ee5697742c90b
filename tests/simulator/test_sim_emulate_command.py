"""Error messages of `python -m simulator emulate`, without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from simulator.commands.emulate import _check, _parser, main
from simulator.machines.sources import named_machines

SMALL = ["tiny-llama", "batch.size=16"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1", *SMALL], "--ranks: 1; allowed: 2 to 1024; use 4, 16 or 256"),
        (["--ranks", "-4", *SMALL], "--ranks: -4; allowed: 2 to 1024"),
        (["--ranks", "1000000", *SMALL], "--ranks: 1000000; allowed: 2 to 1024"),
        (
            ["--ranks", "12", *SMALL],
            "--ranks: 12; allowed: up to 8, or a multiple of the 8 GPUs",
        ),
        (["--ranks", "256", *SMALL], "batch.size: 16 is not divisible by 256 data-parallel ranks; use 256"),
        (["--ranks", "4", *SMALL, "parallel.strategy=fsdp"], "parallel.strategy: fsdp is not emulated; allowed: ddp"),
        (["--ranks", "4", *SMALL, "parallel.strategy=single"], "parallel.strategy: single is not emulated"),
        (
            ["--ranks", "4", *SMALL, "precision=bf16", "optimizer.weights=bf16", "optimizer.gradients=bf16"],
            "optimizer.weights: bf16 is not emulated; allowed: fp32",
        ),
        (["--ranks", "4", *SMALL, "parallel.tensor=2"], "parallel.tensor: 2 is not emulated; allowed: 1"),
        (["--ranks", "4", "tiny-moe", "parallel.expert=2"], "parallel.expert: 2 is not emulated; allowed: 1"),
        (["--ranks", "4", "tiny-moe", "model.balance=bias"], "model.balance: bias is not emulated: it follows"),
        (["--ranks", "4", *SMALL, "parallel.context=2"], "parallel.context: 2 is not emulated; allowed: 1"),
        (["--ranks", "4", *SMALL, "parallel.reduce=bf16"], "parallel.reduce: bf16 is not emulated; allowed: fp32"),
        (
            ["--ranks", "4", *SMALL, "parallel.strategy=ddp", "communication.compression=topk"],
            "communication.compression: topk is not emulated; allowed: none",
        ),
        (
            ["--ranks", "4", *SMALL, "parallel.strategy=ddp", "communication.pattern=ring"],
            "communication.pattern: ring is not emulated; allowed: backend",
        ),
        (
            ["--ranks", "4", *SMALL, "parallel.strategy=ddp", "communication.inner_steps=2"],
            "communication.inner_steps: 2 is not emulated; allowed: 0",
        ),
        (["--ranks", "4", *SMALL, "parallel.pipeline=2"], "parallel.pipeline: 2 is not emulated; allowed: 1"),
        (["--ranks", "4", *SMALL, "parallel.accumulate=sync"], "parallel.accumulate: sync is not emulated"),
        (["--ranks", "4", *SMALL, "checkpoint.initial=runs/other"], "checkpoint.initial: runs/other is not loaded"),
        (["--ranks", "4", *SMALL, "health.spike=rollback"], "health.spike: rollback is not emulated"),
        (["--ranks", "4", *SMALL, "--out", "/proc/none"], "--out: /proc/none cannot be created"),
        (["--ranks", "4", *SMALL, "run.device=cuda"], "run.device: cuda is not emulated"),
        (["--ranks", "4", *SMALL, "--jitter", "-0.1"], "--jitter: -0.1; allowed: 0 to 1"),
        (["--ranks", "4", *SMALL, "--jitter", "nan"], "--jitter: nan; allowed: 0 to 1"),
        (["--ranks", "4", *SMALL, "--system", "p55.large"], "p5.48xlarge"),
        (["--ranks", "4", *SMALL, "--system", "m7i.large"], "has no GPU"),
        (["--ranks", "4", *SMALL, "--system", "local"], "--system: 'local' is a stack without GPUs"),
        (["--ranks", "4", "tiny-lama"], "did you mean the preset tiny-llama?"),
        (["--ranks", "4", *SMALL, "model.heads=5"], "model.heads"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert all(line.startswith("simulator: ") for line in error.splitlines())


@pytest.mark.parametrize("ranks", [4, 16, 256])
def test_default_config_fits_every_number_of_ranks(ranks: int) -> None:
    _, config = _check(_parser().parse_intermixed_args(["--ranks", str(ranks)]))
    assert (config.name, config.batch.size % ranks, config.steps) == ("tiny-llama", 0, 5)


def test_all_problems_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--ranks", "1", *SMALL, "parallel.strategy=hsdp", "--jitter", "7"])
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_machines_can_be_named_by_stack() -> None:
    assert named_machines("aws-p5-autoscaled") == named_machines("p5.48xlarge")
    assert named_machines("p5.48xlarge").system(256).nodes == 32


@pytest.mark.parametrize("command", ["emulate", "calibrate"])
def test_node_commands_import_only_packages_on_nodes(command: str) -> None:
    """Nodes have only torch, numpy and PyYAML: importing anything else would fail there."""
    code = "import sys; sys.modules |= dict.fromkeys(['pydantic', 'pulumi', 'rich', 'boto3']); "
    code += f"from simulator.__main__ import main; sys.exit(main([{command!r}, '--help']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
