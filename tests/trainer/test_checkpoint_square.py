"""A checkpoint of each strategy is loaded by each other one, bit for bit, and training continues from it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.checkpoint_rank import STEPS_BEFORE_SAVE, Visit
from tests.trainer.curves import config_of
from tests.trainer.ranks import on_ranks
from tests.trainer.strategies import (
    BATCH_NORM_CHECKPOINT_MODEL,
    BATCH_NORM_CHECKPOINT_STRATEGIES,
    CHECKPOINT_MODEL,
    CHECKPOINT_STRATEGIES,
    EXPERT_CHECKPOINT_MODEL,
    EXPERT_CHECKPOINT_STRATEGIES,
    LORA,
    LOSS_TOLERANCE,
    TIED_CHECKPOINT_MODEL,
    TIED_CHECKPOINT_STRATEGIES,
    Strategy,
    settings,
)

Folders = dict[Path, Visit]
"""The folder of a checkpoint of each strategy, and its contents."""


@dataclass(frozen=True)
class Square:
    """A model, and the strategies that load each other's checkpoints of it."""

    model: tuple[str, ...]
    strategies: dict[str, Strategy]
    preset: str = "tiny-llama"


SQUARES = {
    "all weights": Square(CHECKPOINT_MODEL, CHECKPOINT_STRATEGIES),
    "LoRA": Square(
        (*CHECKPOINT_MODEL, *LORA),
        {name: strategy for name, strategy in CHECKPOINT_STRATEGIES.items() if name != "tensor, muster"},
    ),
    "experts": Square(EXPERT_CHECKPOINT_MODEL, EXPERT_CHECKPOINT_STRATEGIES, "tiny-moe"),
    "tied": Square(TIED_CHECKPOINT_MODEL, TIED_CHECKPOINT_STRATEGIES, "tiny-gpt2"),
    "batch norm": Square(BATCH_NORM_CHECKPOINT_MODEL, BATCH_NORM_CHECKPOINT_STRATEGIES, "tiny-resnet"),
}
MUSTER_PIPELINE = "pipeline, interleaved, with fsdp, muster"
# At night each strategy loads the checkpoints of all.
CYCLES = {
    "all weights": ("single", "fsdp, zero 3", "tensor with fsdp", "context", "pipeline, interleaved", MUSTER_PIPELINE),
    "tied": ("fsdp, zero 3", "fsdp, muster", "tensor", "tensor, muster"),
    "batch norm": ("fsdp, zero 3", "ddp", "ddp, muster"),
}


@pytest.mark.parametrize(
    "name", ["all weights", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tied", "batch norm"))]
)
def test_each_strategy_loads_the_checkpoint_of_the_one_before(name: str, tmp_path: Path) -> None:
    """The cycle visits each strategy as a writer and as a reader."""
    first, *others = CYCLES[name]
    square = SQUARES[name]
    expected, folder = write(first, tmp_path, square), tmp_path / first
    for reader in (*others, first):
        target = tmp_path / "end" if reader == first else tmp_path / reader
        (visit,) = read(reader, [folder], target, square, saves=True)
        assert_same(visit, expected, f"{folder.name} by {reader}")
        folder = target


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("written")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "reader"), [(name, reader) for name, square in SQUARES.items() for reader in square.strategies]
)
def test_a_strategy_loads_the_checkpoints_of_all(name: str, reader: str, parent: Path, tmp_path: Path) -> None:
    square, folders = SQUARES[name], write_all(name, parent)
    visits = read(reader, list(folders), tmp_path, square)
    for visit, (folder, expected) in zip(visits, folders.items(), strict=True):
        assert_same(visit, expected, f"{folder.name} by {reader}")


@cache
def write_all(name: str, parent: Path) -> Folders:
    """Let each strategy of a square save its checkpoint, once for all readers.

    A fixture with the square as its parameter would do so for each of them.
    """
    square = SQUARES[name]
    return {parent / name / writer: write(writer, parent / name, square) for writer in square.strategies}


def write(writer: str, parent: Path, square: Square) -> Visit:
    return join_ranks(run("save", writer, parent / writer, square))


def read(reader: str, folders: list[Path], own: Path, square: Square, *, saves: bool = False) -> list[Visit]:
    # Another seed, so that nothing is right before it is loaded.
    by_rank = run("load", reader, own, square, "run.seed=2", folders=folders, saves=saves)
    return [join_ranks(list(visits)) for visits in zip(*by_rank, strict=True)]


def run(function: str, strategy: str, folder: Path, square: Square, *more: str, **arguments: Any) -> list[Any]:
    column = square.strategies[strategy]
    config = config_of(square.preset, [*square.model, *settings(column.settings), f"run.folder={folder}", *more])
    return on_ranks(f"tests.trainer.checkpoint_rank:{function}", ranks=column.ranks, config=config, **arguments)


def join_ranks(visits: list[Visit]) -> Visit:
    """Return the state of all ranks; those that hold the same tensor must agree on it."""
    digests: dict[str, str] = {}
    for visit in visits:
        assert {name: digests[name] for name in visit.digests if name in digests}.items() <= visit.digests.items()
        digests |= visit.digests
        assert (visit.step, visit.next_loss) == (visits[0].step, visits[0].next_loss)
    return Visit(digests, visits[0].step, visits[0].next_loss)


def assert_same(visit: Visit, expected: Visit, what: str) -> None:
    assert visit.step == expected.step == STEPS_BEFORE_SAVE, what
    assert visit.digests == expected.digests, what
    assert visit.next_loss == pytest.approx(expected.next_loss, abs=LOSS_TOLERANCE), what
