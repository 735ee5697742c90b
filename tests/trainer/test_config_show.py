"""The settings listed at the start of a run: complete, short, and those that were changed first."""

from __future__ import annotations

import re

import pytest

from trainer.config.convert import list_settings
from trainer.config.load import list_presets, load, to_dict
from trainer.config.show import show

WIDTH = 100


@pytest.mark.parametrize("preset", list_presets())
def test_every_setting_is_listed_in_few_lines_that_fit(preset: str) -> None:
    config = load(preset, [])
    lines = show(config, "config.yaml", WIDTH, is_terminal=False)
    assert len(lines) <= 32
    assert max(len(line) for line in lines) <= WIDTH
    tree = to_dict(config)
    assert listed_settings(lines) == {path for path in list_settings() if is_in(tree, path)}


def test_changed_settings_come_before_the_bar_and_defaults_after_it() -> None:
    config = load("tiny-mlp", ["optimizer.beta1=0.5", "model.hidden=[8, 8]", "run.folder=/a b/c"])
    lines = show(config, "runs/tiny-mlp/config.yaml", 300, is_terminal=False)
    assert lines[0].endswith("also in runs/tiny-mlp/config.yaml")
    sections = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[2:]}
    assert lines[1].split() == ["name=tiny-mlp", "steps=40", "|", "precision=fp32"]
    assert sections["model"] == "family=mlp inputs=32 hidden=[8,8] classes=4", "a model is chosen as a whole"
    own, defaults = sections["optimizer"].split(" | ")
    assert own == "lr=0.003 beta1=0.5 weight_decay=0.0"
    assert defaults == (
        "name=adamw weights=fp32 master=false gradients=fp32 moments=fp32 clip_norm=1.0 beta2=0.95 eps=1.0e-08 "
        "momentum=0.9 muon_momentum=0.95 muon_exclude=['*head.weight','*classifier.weight'] decay_groups=[]"
    )
    assert sections["stop"] == "| margin_s=0.0 save_within_s=600.0 warning_s=120.0"
    assert sections["run"].startswith("folder=/a b/c | seed=1 ")


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_a_terminal_shows_only_the_defaults_dimmed(width: int) -> None:
    config = load("llama-70b", [])
    plain = show(config, "config.yaml", width, is_terminal=False)
    dimmed = show(config, "config.yaml", width, is_terminal=True)
    assert [re.sub("\x1b\\[[02]m", "", line) for line in dimmed] == plain
    dim = " ".join(part for line in dimmed for part in re.findall("\x1b\\[2m(.*)\x1b\\[0m$", line))
    bright = " ".join(re.sub("\x1b.*", "", line) for line in dimmed[1:])
    assert "prefetch=1" in dim
    assert "peak_tflops=0.0" in dim
    assert "|" not in bright
    assert {"strategy=fsdp", "tensor=8", "recompute=full", "vocab_size=128256"} <= set(bright.split())


def listed_settings(lines: list[str]) -> set[str]:
    settings, section = set(), ""
    for line in lines[1:]:
        start = re.match(r"  (\w+)  ", line)
        section = f"{start[1]}." if start else section
        settings |= {f"{section}{key}" for key in re.findall(r"(\w+)=", line)}
    return settings


def is_in(tree: dict[str, object], path: str) -> bool:
    first, _, remainder = path.partition(".")
    inner = tree.get(first)
    return first in tree and (not remainder or (isinstance(inner, dict) and is_in(inner, remainder)))
