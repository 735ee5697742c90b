"""Start a run from the weights of another run or of a Hugging Face folder, and export weights to one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.trainer.launch import SMALL_LLAMA, checkpoint_steps
from trainer.__main__ import main
from trainer.checkpoint.checkpoints import Checkpoints
from trainer.config.load import load
from trainer.life.outcome import Code
from trainer.models import hf
from trainer.models.init import fill
from trainer.models.registry import build_model

MODEL = load(SMALL_LLAMA[0], list(SMALL_LLAMA[1:])).model
BATCH = 8
# A step at this rate changes no weight, so the first checkpoint contains the initial weights.
STILL = ("steps=1", "optimizer.lr=0", f"batch.size={BATCH}")
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, whose weights differ from the initial ones and between steps."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main([*SMALL_LLAMA, f"run.folder={folder}", "steps=3", "checkpoint.every=1"]) == Code.FINISHED
    return folder


def test_a_run_starts_from_a_hugging_face_folder(tmp_path: Path) -> None:
    model = build_model(MODEL)
    fill([model], seed=7)
    theirs = {name: parameter.detach() for name, parameter in model.named_parameters()}
    hf.export(theirs, MODEL, tmp_path / "hf")
    check_start(theirs, tmp_path / "hf", tmp_path / "run")


def test_a_run_starts_from_the_newest_checkpoint_of_another(trained: Path, tmp_path: Path) -> None:
    check_start(weights_in(trained / "checkpoints"), trained / "checkpoints", tmp_path / "run")


def test_a_run_starts_from_one_checkpoint_of_another(trained: Path, tmp_path: Path) -> None:
    first = trained / "checkpoints" / "step-00000001"
    theirs = weights_in(first)
    assert not equal(theirs, weights_in(trained / "checkpoints"))
    check_start(theirs, first, tmp_path / "run")


def test_a_run_with_a_checkpoint_resumes_from_its_own(trained: Path, tmp_path: Path) -> None:
    arguments = [*SMALL_LLAMA, f"run.folder={tmp_path}", "optimizer.lr=0"]
    assert main([*arguments, "steps=1"]) == Code.FINISHED
    assert main([*arguments, "steps=2", f"checkpoint.initial={trained / 'checkpoints'}"]) == Code.FINISHED
    own = tmp_path / "checkpoints"
    assert checkpoint_steps(tmp_path) == [1, 2]
    assert equal(weights_in(own / "step-00000002"), weights_in(own / "step-00000001"))


def test_a_run_starts_from_the_folder_of_another(trained: Path, tmp_path: Path) -> None:
    check_start(weights_in(trained / "checkpoints"), trained, tmp_path / "run")


def test_a_folder_with_neither_weights_nor_checkpoint_is_rejected(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    empty, gone, run = tmp_path / "empty", tmp_path / "gone", tmp_path / "run"
    empty.mkdir()
    looked_for = "looked for manifest.json, step-* and checkpoints/step-* and *.safetensors"
    for source, what in (
        (empty, f"{empty} contains neither weights nor a checkpoint ({looked_for})"),
        (gone, f"there is no folder {gone}"),
    ):
        assert main([*SMALL_LLAMA, f"run.folder={run}", f"checkpoint.initial={source}"]) == Code.BAD_INPUT
        fix = "use a run's folder, its checkpoints folder, one checkpoint or a Hugging Face folder; or leave it empty"
        assert f"checkpoint.initial: {what}; {fix}" in capfd.readouterr().err.splitlines()
    assert not run.exists()


def test_weights_of_another_model_are_rejected(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        *SMALL_LLAMA,
        "model.ffn=96",
        f"run.folder={tmp_path}",
        f"checkpoint.initial={trained / 'checkpoints'}",
    ]
    assert main(arguments) == Code.BAD_INPUT
    assert "is a checkpoint of another model: shapes differ: " in capfd.readouterr().err


def test_transformers_opens_an_exported_run(trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(trained), str(tmp_path)]) == 0
    expected = f"exported {trained}/checkpoints/step-00000003 to the Hugging Face folder {tmp_path}\n"
    assert capfd.readouterr().out == expected
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ours = build_model(MODEL).eval()
    ours.load_state_dict(weights_in(trained / "checkpoints"))
    tokens = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert torch.allclose(ours(tokens), theirs.eval()(tokens).logits, atol=1e-5)


@pytest.mark.parametrize(
    ("inside", "newest"), [("", 3), ("checkpoints", 3), ("checkpoints/step-00000001", 1)], ids=["run", "all", "one"]
)
def test_a_run_its_checkpoints_folder_and_one_checkpoint_can_be_exported(
    inside: str, newest: int, trained: Path, tmp_path: Path
) -> None:
    assert main(["export", str(trained / inside), str(tmp_path)]) == 0
    expected = weights_in(trained / "checkpoints" / f"step-{newest:08d}")
    assert equal({name: value.clone() for name, value in hf.load(tmp_path, MODEL).items()}, expected)


def test_a_folder_without_checkpoint_cannot_be_exported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fix = "use a run's folder, its checkpoints folder or one checkpoint"
    assert main(["export", str(tmp_path / "gone"), str(tmp_path / "out")]) == Code.BAD_INPUT
    assert capfd.readouterr().err == f"trainer: FROM: there is no folder {tmp_path / 'gone'}; {fix}\n"
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == Code.BAD_INPUT
    what = f"{tmp_path} contains no checkpoint (looked for manifest.json, step-* and checkpoints/step-*)"
    assert capfd.readouterr().err == f"trainer: FROM: {what}; {fix}\n"
    assert not (tmp_path / "out").exists()


def test_a_run_that_keeps_no_best_checkpoint_has_none_to_export(
    trained: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", "--best", str(trained), str(tmp_path / "out")]) == Code.BAD_INPUT
    problem = (
        f"trainer: --best: {trained} does not have a best checkpoint: checkpoint.best is not set; leave --best out"
    )
    assert capfd.readouterr().err.startswith(problem)
    assert main(["export", "--best", str(tmp_path / "gone"), str(tmp_path / "out")]) == Code.BAD_INPUT
    assert f"FROM: there is no folder {tmp_path / 'gone'}" in capfd.readouterr().err


def check_start(theirs: State, source: Path, run: Path) -> None:
    """Check that a run starts from these weights bit for bit, with step, data and optimizer at zero."""
    assert main([*SMALL_LLAMA, *STILL, f"run.folder={run}", f"checkpoint.initial={source}"]) == Code.FINISHED
    assert checkpoint_steps(run) == [1]
    assert equal(weights_in(run / "checkpoints"), theirs)
    checkpoints = Checkpoints(run / "checkpoints")
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    updates = {"optim.updates": torch.zeros(())}
    checkpoints.load(checkpoint, updates, partial=True)
    assert updates["optim.updates"] == 1
    assert checkpoints.read_state(checkpoint)["extra"]["position"] == BATCH


def weights_in(path: Path) -> State:
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in build_model(MODEL).named_parameters()}
    state = {name: torch.zeros(shape) for name, shape in shapes.items()}
    checkpoints = Checkpoints(path)
    checkpoint = checkpoints.newest()
    assert checkpoint is not None
    checkpoints.load(checkpoint, {f"model.{name}": value for name, value in state.items()}, partial=True)
    return state


def equal(a: State, b: State) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
