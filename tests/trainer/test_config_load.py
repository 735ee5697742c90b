"""Loading YAML and overrides returns a Config or reports every problem at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.config import describe
from trainer.config.convert import list_settings
from trainer.config.errors import ConfigError
from trainer.config.load import PRESETS, dump, from_dict, list_presets, load, to_dict
from trainer.config.models import Gpt2Config, MlpConfig
from trainer.config.schema import Config
from trainer.config.yaml_text import parse_yaml

FAMILIES = "llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, gpt2, resnet, mlp"
SMALL = "name: small\nmodel: {family: mlp, hidden: [8]}\n"


def test_every_preset_loads_and_round_trips() -> None:
    assert len(list_presets()) == 26
    for name in list_presets():
        config = load(name, [])
        assert config.name == name
        assert from_dict(parse_yaml(dump(config))) == config
        assert load(str(PRESETS / f"{name}.yaml"), []) == config


def test_unusual_values_round_trip() -> None:
    odd = ["data.path='1e-4'", "compile.backend='yes'", "run.folder='null {name}'", "optimizer.eps=1e-30"]
    config = load("mlp", [*odd, "model.hidden=[]"])
    assert config.data.path == "1e-4"
    assert config.compile.backend == "yes"
    assert config.optimizer.eps == 1e-30
    assert from_dict(parse_yaml(dump(config))) == config


def test_later_overrides_win() -> None:
    overrides = [
        "optimizer.lr=1e-3",
        "batch.micro=4",
        "model.hidden=[4, 4]",
        "batch.micro=auto",
        "data.path=",
        "steps=1_000",
    ]
    config = load("mlp", overrides)
    assert config.optimizer.lr == 0.001
    assert config.batch.micro == "auto"
    assert config.model == MlpConfig(hidden=(4, 4))
    assert config.data.path == ""
    assert config.steps == 1000


def test_family_chooses_the_model(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("name: a\nmodel:\n  family: gpt2\n  layers: 2\n")
    assert load(str(path), []).model == Gpt2Config(layers=2)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("batch.sise=3", "batch.sise: no such setting; did you mean batch.size?"),
        ("lr=1", "lr: no such setting; did you mean optimizer.lr?"),
        ("optimiser.lr=1", "optimiser: no such setting; did you mean optimizer?"),
        ("zzz=1", "zzz: no such setting; allowed here: name, steps, model, lora, data,"),
        ("steps=0", "steps: 0 is below 1; set it to 1 or more"),
        ("data.workers=65", "data.workers: 65 is above 64; set it from 0 to 64"),
        ("steps=1.5", "steps: 1.5 is not allowed; allowed: whole number"),
        ("steps=true", "steps: True is not allowed; allowed: whole number"),
        (
            "metrics.wandb=on",
            "metrics.wandb: True is not allowed; allowed: none, online, offline "
            "(YAML reads on and yes as true, off and no as false; quote a text)",
        ),
        ("steps=ten", "steps: 'ten' is not allowed; allowed: whole number"),
        ("steps=", "steps: '' is not allowed; allowed: whole number"),
        ("optimizer.lr=.nan", "optimizer.lr: nan is not allowed; allowed: number"),
        ("optimizer.lr=fast", "optimizer.lr: 'fast' is not allowed; allowed: number"),
        ("compile.backend=3", "compile.backend: 3 is not allowed; allowed: text"),
        ("batch.micro=many", "batch.micro: 'many' is not allowed; allowed: whole number or auto"),
        ("batch.micro=0", "batch.micro: 0 is below 1; set it to 1 or more"),
        ("checkpoint.every=often", "checkpoint.every: 'often' is not allowed; allowed: whole number or never"),
        ("checkpoint.every=-1", "checkpoint.every: -1 is below 0; set it to 0 or more"),
        (
            "checkpoint.best=acuracy",
            "checkpoint.best: 'acuracy' is not allowed; allowed: empty, loss, perplexity, accuracy (did you mean accu",
        ),
        ("evaluation.every=0", "evaluation.every: 0 is below 1; set it to 1 or more"),
        ("evaluation.share=-0.1", "evaluation.share: -0.1 is below 0; set it to 0 or more"),
        ("evaluation.share=some", "evaluation.share: 'some' is not allowed; allowed: number"),
        ("evaluation.samples=-1", "evaluation.samples: -1 is below 0; set it to 0 or more"),
        ("metrics.nvml=1", "metrics.nvml: 1 is not allowed; allowed: true or false"),
        ("precision=bf61", "precision: 'bf61' is not allowed; allowed: fp32, bf16, fp16 (did you mean bf16?)"),
        ("parallel.zero=4", "parallel.zero: 4 is not allowed; allowed: 1, 2, 3"),
        ("parallel.zero='3'", "parallel.zero: '3' is not allowed; allowed: 1, 2, 3"),
        ("model.hidden=[a]", "model.hidden: ['a'] is not allowed; allowed: list of whole numbers"),
        (
            "model.family=mpl",
            f"model.family: 'mpl' is not a model family; allowed: {FAMILIES} (did you mean mlp?)",
        ),
        (
            "model.family=[mlp]",
            f"model.family: ['mlp'] is not a model family; allowed: {FAMILIES}",
        ),
        ("model.heads=3", "model.heads: no such setting"),
        (
            "model=3",
            f"model.family: is missing; allowed: {FAMILIES}",
        ),
        ("data=3", "data: must be a section, not 3; write data: {key: value}"),
        ("data=", "data: must be a section, not ''; write data: {key: value}"),
        ("steps.more=3", "steps.more: steps is 1000, which is not a section"),
        ("steps", "steps: is not a setting; write overrides as key.sub=value"),
        ("name=[1", "name: '[1' is not a YAML value"),
    ],
)
def test_an_invalid_override_is_reported_with_a_fix(override: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL + "steps: 1000\n")
    assert message in error_text(str(path), [override])


def test_settings_of_other_trainers_and_other_families_are_recognised() -> None:
    assert "did you mean optimizer.lr?" in error_text("tiny-llama", ["optimizer.learning_rate=1"])
    assert "model.ffn: no such setting for this model family; allowed here: " in error_text(
        "tiny-llama", ["model.family=gpt2"]
    )


def test_all_problems_are_reported_at_once() -> None:
    text = error_text("tiny-llama", ["batch.size=0", "precision=x", "foo", "model.dim=big", "health.window=1"])
    assert [line.partition(":")[0] for line in text.splitlines()] == [
        "foo",
        "model.dim",
        "batch.size",
        "precision",
        "health.window",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: b: c", "line 1: mapping values are not allowed here"),
        ("name: a\nname: b\n", "line 2: 'name' is given twice"),
        ("", "is empty; write settings into it, at least `name: ...`"),
        ("- 1", "is [1], not a mapping of settings"),
        ("model: {family: mlp}", "name: is missing; set name (name of the run)"),
        ("name: a", "model: is missing"),
        (
            "name: a\nmodel: {layers: 3}",
            f"model.family: is missing; allowed: {FAMILIES}",
        ),
        ("name: a\nmodel: {family: mlp}\ndata:\n", "data: must be a section, not empty"),
        ("\x00", "special characters are not allowed"),
    ],
)
def test_invalid_files_are_rejected(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert message in error_text(str(path), [])


def test_an_unknown_preset_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    assert "did you mean the preset llama-8b?" in error_text("lama-8b", [])
    assert "neither a preset nor a file" in error_text("what", [])
    assert "Is a directory" in error_text(str(tmp_path), [])


def test_a_file_extends_a_preset_and_the_result_does_not_depend_on_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: llama-1b\nsteps: 7\nmodel: {layers: 2}\noptimizer: {lr: 1e-3}\n")
    whole = load("llama-1b", [])
    mine = load(str(path), ["batch.size=64"])
    assert mine.name == "mine", "with the same name both would train in the same folder"
    assert mine == load("llama-1b", ["name=mine", "steps=7", "model.layers=2", "optimizer.lr=1e-3", "batch.size=64"])
    assert mine.optimizer.weight_decay == whole.optimizer.weight_decay
    assert "base" not in to_dict(mine)
    stored = tmp_path / "elsewhere" / "config.yaml"
    stored.parent.mkdir()
    stored.write_text(dump(mine))
    assert load(str(stored), []) == mine


def test_a_base_is_relative_to_its_file_and_may_have_a_base_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "common.yaml").write_text("base: tiny-llama\nsteps: 5\nmodel: {layers: 2, ffn: 32}\n")
    (tmp_path / "runs" / "long.yaml").write_text("name: long-1\nbase: ../common.yaml\nsteps: 9\nmodel: {ffn: 64}\n")
    monkeypatch.chdir(tmp_path)
    expected = ["name=long-1", "steps=9", "model.layers=2", "model.ffn=64"]
    assert load("runs/long.yaml", []) == load("tiny-llama", expected)


def test_a_model_of_another_family_replaces_the_model_of_the_base(tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text("base: tiny-llama\nmodel: {family: gpt2, layers: 2}\n")
    assert load(str(path), []).model == Gpt2Config(layers=2)
    path.write_text("base: tiny-llama\nmodel: {family: llama, layers: 2}\n")
    assert load(str(path), []).model == load("tiny-llama", ["model.layers=2"]).model


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("lama-8b", "neither a preset nor a file; did you mean the preset llama-8b?"),
        ("comon.yaml", "neither a preset nor a file; did you mean common.yaml?"),
        ("what", "give a YAML file or one of demo, gpt2-124m,"),
        ("mine.yaml", "is circular: mine.yaml -> mine.yaml; remove base from one of them"),
        ("common.yaml", "is circular: mine.yaml -> common.yaml -> mine.yaml; remove base from one of them"),
        ("", "mine.yaml: base: empty is not allowed; name a preset or a YAML file"),
        ("[mlp]", "mine.yaml: base: ['mlp'] is not allowed; name a preset or a YAML file"),
    ],
)
def test_invalid_bases_are_rejected(base: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "common.yaml").write_text("base: mine.yaml\n")
    (tmp_path / "mine.yaml").write_text(f"base: {base}\n")
    assert message in error_text(str(tmp_path / "mine.yaml"), [])


def test_a_base_is_not_allowed_as_an_override() -> None:
    expected = "base=tiny-mlp: is allowed only in YAML files; start with `python -m trainer tiny-mlp`"
    assert expected in error_text("tiny-llama", ["base=tiny-mlp"])


def test_help_and_docs_list_every_setting() -> None:
    page, text = describe.render_markdown(), describe.render_text()
    for path in list_settings():
        assert f"`{path}`" in page
        assert f"  {path} = " in text
    assert len(list_settings()) > 80
    assert "| `optimizer.eps` | `1.0e-08` | number, 0 or more | AdamW: epsilon added to the denominator |" in page


def test_the_settings_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "trainer-settings.md"
    assert page.read_text() == describe.render_markdown() + "\n", "run `make golden`"


def test_loading_a_configuration_does_not_import_torch() -> None:
    code = "import sys; from trainer.config import load, check, describe; from trainer.models import shape; "
    code += "c = load.load('tiny-llama', []); check.check_world(c, 8, 8); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PRESETS.parent.parent)


def error_text(path: str, overrides: list[str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides)
    return str(caught.value)


def test_a_home_folder_is_expanded_in_every_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves ~ in key=~/folder as it is."""
    monkeypatch.setenv("HOME", "/home/me")
    images = ["data.kind=images", "data.path=~/images", "evaluation.path=~/held-out", "checkpoint.initial=~/weights"]
    config = load("tiny-resnet", [*images, "run.folder=~/runs/{name}"])
    assert (config.data.path, config.evaluation.path) == ("/home/me/images", "/home/me/held-out")
    assert (config.checkpoint.initial, config.run.folder) == ("/home/me/weights", "/home/me/runs/{name}")
    mixture = ["data.kind=tokens", "data.mixture=[~/web=0.5, s3://bucket/~code=0.5]", "data.cache=~/cache"]
    data = load("tiny-llama", mixture).data
    assert (data.mixture, data.cache) == (("/home/me/web=0.5", "s3://bucket/~code=0.5"), "/home/me/cache")
    # A run that was started from Python, or by an older version.
    tree = to_dict(load("mlp", []))
    tree["run"]["folder"] = "~/mine"
    assert from_dict(tree).run.folder == "/home/me/mine"


def test_the_settings_of_an_older_run_are_checked_too() -> None:
    tree: dict[str, Any] = to_dict(load("mlp", []))
    tree["batch"]["sizes"] = 3
    with pytest.raises(ConfigError, match=r"did you mean batch\.size"):
        from_dict(tree)
    assert isinstance(from_dict(to_dict(load("mlp", []))), Config)
