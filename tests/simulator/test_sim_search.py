"""The planner: enumerated layouts, the Pareto front, and the files it writes."""

from __future__ import annotations

from dataclasses import replace
from difflib import ndiff
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.targets.registry import read_spec as read
from infra.validate import validate
from simulator.layout import Layout
from simulator.machines import stacks
from simulator.machines.instances import system
from simulator.memory.peak import predict_memory
from simulator.models import find_model
from simulator.parameters import count_parameters
from simulator.search import filesystem, plan_files, question, stack_edit, trainer_config
from simulator.search.fastest import MEMORY_MARGIN, find_fastest
from simulator.search.option import Option
from simulator.search.plan import Plan, choose, pareto_front, plan
from simulator.search.question import Question
from simulator.search.space import Batch, Space
from simulator.step.prediction import predict
from trainer.config import load
from trainer.config.check import check_world
from trainer.config.errors import ConfigError

STACKS = Path(__file__).parents[2] / "stacks"
LUSTRE = STACKS / "Pulumi.aws-p5en-lustre.yaml"


def build_question(**changes: object) -> Question:
    model = find_model("llama-8b")
    spec = read(LUSTRE)
    usual = Question(
        named=model,
        tokens=1e12,
        spec=spec,
        group="h200",
        instances=("p5en.48xlarge", "p5.48xlarge"),
        nodes=(2, 4, 8, 16),
        purchases=("on-demand", "spot"),
        batch=question.choose_batch(model),
    )
    return replace(usual, **changes)


@cache
def default_plan() -> Plan:
    return plan(build_question())


def layouts(space: Space) -> list[Layout]:
    return [
        space.layout(shape, sharding, passes, "none")
        for shape in space.shapes()
        for sharding in space.shardings(shape)
        for all_layouts in space.micros(shape)
        for passes in all_layouts
    ]


@pytest.mark.parametrize(("model", "nodes"), [("llama-8b", 3), ("llama-405b", 128), ("mixtral-8x7b", 8)])
def test_enumerated_layouts_are_valid(model: str, nodes: int) -> None:
    sizes = find_model(model).model
    candidates = layouts(Space(sizes, system("p5.48xlarge", nodes), Batch(768, 1536)))
    assert candidates
    assert len(set(candidates)) == len(candidates)
    for layout in candidates:
        assert layout.gpus == 8 * nodes
        assert 768 <= layout.global_batch <= 1536
        assert layout.global_batch % (layout.dp * layout.micro_batch) == 0
        assert layout.micro_batches >= layout.pp
        assert sizes.heads % layout.tp == sizes.kv_heads % layout.tp == sizes.seq % layout.cp == 0
        assert layout.dp * layout.cp % layout.ep == 0
        assert not layout.shard or layout.dp * layout.cp % layout.shard == 0


def test_search_finds_the_fastest_layout_that_fits() -> None:
    """Pruning before timing loses nothing: compare with timing every layout of a small space."""
    model, machines = find_model("llama-3b").model, system("p5.48xlarge", 2)
    space = Space(model, machines, Batch(64, 64))
    all_layouts = [
        replace(layout, recompute=recompute) for layout in layouts(space) for recompute in ("none", "selective", "full")
    ]
    room = machines.gpu.memory_gb * 2**30 * (1 - MEMORY_MARGIN)
    needs = [(layout, predict_memory(model, layout, machines)) for layout in all_layouts]
    fitting = [layout for layout, needed in needs if needed.total <= room and needed.fits]
    quickest = min(predict(model, layout, machines).step_s / layout.global_batch for layout in fitting)
    fastest = find_fastest(space)
    assert fastest.any
    assert fastest.any.sample_s == pytest.approx(quickest)


@pytest.mark.nightly
def test_options_leave_the_memory_margin_free() -> None:
    for option in default_plan().options:
        assert option.memory_gib <= (1 - MEMORY_MARGIN) * system(option.instance, option.nodes).gpu.memory_gb


@pytest.mark.parametrize(
    ("model", "instance", "nodes"), [("llama-1b", "g6.48xlarge", 2), ("llama-8b", "p4d.24xlarge", 16)]
)
def test_chosen_layout_fits_according_to_predict(model: str, instance: str, nodes: int) -> None:
    fastest = find_fastest(Space(find_model(model).model, system(instance, nodes), Batch(1024, 1024)))
    assert fastest.any
    assert fastest.runnable
    assert fastest.any.prediction.fits
    assert fastest.runnable.prediction.fits


def test_context_parallelism_is_not_planned_for_the_trainer() -> None:
    fastest = find_fastest(Space(find_model("llama-8b").model, system("p5.48xlarge", 4), Batch(512, 512)))
    assert fastest.runnable
    assert fastest.runnable.layout.cp == 1
    assert fastest.any
    assert fastest.any.sample_s <= fastest.runnable.sample_s


def test_no_option_beats_the_front() -> None:
    result = default_plan()
    for option in result.front:
        others = [o for o in result.options if not o.unsupported]
        assert not any(o.outlook.wall_s < option.outlook.wall_s and o.usd < option.usd for o in others)


class Point:
    """The part of an option that the Pareto front reads."""

    def __init__(self, wall_s: float, usd: float) -> None:
        self.outlook, self.usd = self, usd
        self.wall_s = wall_s


points = st.lists(st.builds(Point, st.floats(1, 1e6), st.floats(1, 1e6)), min_size=1, max_size=40)


@given(points)
def test_front_dominates_all_options(options: list[Option]) -> None:
    front = pareto_front(options)
    assert all(a.outlook.wall_s <= b.outlook.wall_s and a.usd > b.usd for a, b in pairwise(front))
    for option in options:
        assert any(k.outlook.wall_s <= option.outlook.wall_s and k.usd <= option.usd for k in front)


@given(points, st.floats(1, 1e6), st.floats(1, 1e6))
def test_larger_budget_is_never_slower_and_later_deadline_never_costs_more(
    options: list[Option], limit: float, other: float
) -> None:
    less, more = sorted((limit, other))
    poor, rich = (choose(options, None, usd) for usd in (less, more))
    assert poor is None or (rich is not None and rich.outlook.wall_s <= poor.outlook.wall_s)
    hurried, patient = (choose(options, s, None) for s in (less, more))
    assert hurried is None or (patient is not None and patient.usd <= hurried.usd)


def test_more_nodes_are_faster_and_spot_is_cheaper() -> None:
    by = {(o.instance, o.purchase, o.nodes): o for o in default_plan().options if not o.unsupported}
    for nodes, more in pairwise((2, 4, 8, 16)):
        few, many = by["p5.48xlarge", "on-demand", nodes], by["p5.48xlarge", "on-demand", more]
        assert many.outlook.wall_s < few.outlook.wall_s
    for nodes in (2, 16):
        on_demand, spot = by["p5.48xlarge", "on-demand", nodes], by["p5.48xlarge", "spot", nodes]
        assert spot.usd < on_demand.usd
        assert spot.outlook.wall_s > on_demand.outlook.wall_s
        assert spot.outlook.interruptions > on_demand.outlook.interruptions


def test_figures_of_an_option_are_consistent() -> None:
    option = next(o for o in default_plan().options if o.purchase == "on-demand" and not o.unsupported)
    tokens = option.layout.global_batch * 8192
    assert option.steps == -(-1e12 // tokens)
    training = option.steps * option.prediction.step_s
    assert option.outlook.goodput * option.outlook.wall_s == pytest.approx(training)
    assert option.outlook.low_s < option.outlook.wall_s < option.outlook.high_s
    # Two filesystems, a controller and a login node cost little compared with the GPU nodes.
    paid = (option.outlook.wall_s - 600) / 3600 * option.nodes * 63.296
    assert paid < option.usd < 1.05 * paid


def test_parameter_count_of_llama_8b() -> None:
    assert count_parameters(find_model("llama-8b").model).total == pytest.approx(8.03e9, rel=0.002)


@pytest.mark.parametrize("row", range(4))
def test_trainer_accepts_the_settings_of_every_row(row: int, tmp_path: Path) -> None:
    option = default_plan().front[row]
    tree, problems = plan_files.trainer_settings(default_plan().question, option)
    assert problems == []
    file = tmp_path / "train.yaml"
    file.write_text(trainer_config.render_yaml(tree, "a comment"))
    config = load.load(str(file), [])
    assert check_world(config, option.gpus, 8) == []
    assert config.batch.size == option.layout.global_batch
    assert config.parallel.tensor == option.layout.tp
    assert config.steps == option.steps
    assert config.optimizer.lr == load.load("llama-8b", []).optimizer.lr


@pytest.mark.parametrize("model", ["llama-405b", "gpt3-175b", "tinyllama-1.1b", "gpt2-xl", "phi3-mini"])
def test_models_without_a_preset_get_a_complete_config(model: str, tmp_path: Path) -> None:
    named_model = find_model(model)
    nodes = (64,) if "b" in model and count_parameters(named_model.model).total > 1e11 else (1,)
    result = plan(
        build_question(
            named=named_model, nodes=nodes, purchases=("on-demand",), batch=question.choose_batch(named_model)
        )
    )
    tree, problems = plan_files.trainer_settings(result.question, result.front[0])
    assert problems == []
    file = tmp_path / "train.yaml"
    file.write_text(trainer_config.render_yaml(tree, "a comment"))
    config = load.load(str(file), [])
    assert config.model.layers == named_model.model.layers


def test_short_run_has_a_short_warmup() -> None:
    job = trainer_config.PlannedRun(find_model("llama-8b"), 1e10, 100)
    tree = trainer_config.build_settings(job, Layout(dp=8, global_batch=512, zero=3))
    assert tree["schedule"]["warmup"] < 0.05 * tree["steps"]


def test_mixture_with_shared_experts_is_planned_but_has_no_config() -> None:
    mixture = find_model("deepseek-v2")
    result = plan(
        build_question(named=mixture, nodes=(8,), purchases=("on-demand",), batch=question.choose_batch(mixture))
    )
    assert result.front
    assert all(option.unsupported for option in result.front)
    tree, problems = plan_files.trainer_settings(result.question, result.front[0])
    assert not tree
    assert "does not support this model" in problems[0]


@pytest.mark.parametrize("name", ["mixtral-8x7b", "mixtral-8x22b"])
def test_mixture_of_experts_has_a_config(name: str) -> None:
    """One is a preset; of the other, only the sizes are known."""
    job = trainer_config.PlannedRun(find_model(name), 1e12, 100)
    layout = Layout(dp=64, ep=8, global_batch=1024, zero=3)
    tree = trainer_config.build_settings(job, layout)
    assert trainer_config.unsupported_reason(job.named.model, layout) == ""
    assert trainer_config.list_problems(tree, layout, gpus_per_node=8) == []
    config: Any = load.from_dict(trainer_config.merge_base(tree))
    assert (config.parallel.expert, config.model.family, config.model.experts) == (8, "mixtral", 8)
    assert trainer_config.unsupported_reason(job.named.model, Layout(dp=8, tp=8)) == ""
    assert "not by both" in trainer_config.unsupported_reason(job.named.model, Layout(dp=8, tp=8, ep=8))


@pytest.mark.parametrize("stack", ["aws-p5en-lustre", "aws-p5-autoscaled", "aws-g6-pair"])
@pytest.mark.parametrize(("instance", "purchase"), [("p5.48xlarge", "on-demand"), ("p6-b200.48xlarge", "spot")])
def test_edited_stack_is_valid_and_keeps_its_comments(stack: str, instance: str, purchase: str, tmp_path: Path) -> None:
    file = stacks.find(stack)
    spec = stacks.spec_of(file)
    group = stacks.group_of(spec, None)
    stack_question = build_question(spec=spec, group=group, instances=(instance,), purchases=(purchase,), nodes=(16,))
    result = plan(stack_question)
    folder = plan_files.write(result, file, tmp_path)[0]
    text = (folder / file.name).read_text()
    edited = read(folder / file.name)
    assert [issue for issue in validate(edited) if issue.level == "error"] == []
    changed = edited.groups[group]
    assert (changed.instance_type, changed.count or changed.max) == (instance, 16)
    assert changed.capacity.kind == purchase
    assert [line for line in file.read_text().splitlines() if line.strip().startswith("#")] == [
        line for line in text.splitlines() if line.strip().startswith("#")
    ]


@given(st.sampled_from(["aws-p5en-lustre", "aws-p5-autoscaled", "aws-g6-pair"]), st.integers(1, 1024))
def test_edit_changes_only_the_named_fields(stack: str, nodes: int) -> None:
    text = stacks.find(stack).read_text()
    before = stack_edit.load_text(text)
    group = stacks.group_of(before, None)
    field = "count" if before.groups[group].count is not None else "max"
    changes = [(("groups", group, field), nodes), (("slurm", "kill_wait_s"), 45)]
    after = stack_edit.load_text(stack_edit.apply_edits(text, changes))
    assert getattr(after.groups[group], field) == nodes
    assert after.slurm.kill_wait_s == 45
    same = {"groups": before.groups, "slurm": before.slurm}
    assert after.model_copy(update=same) == before


@pytest.mark.parametrize("file", sorted(STACKS.glob("*.yaml")), ids=lambda file: file.name)
def test_edit_leaves_other_lines_unchanged(file: Path) -> None:
    text = file.read_text()
    group = next(iter(yaml.safe_load(text)["config"]["muster:cluster"]["groups"]))
    edits = [(("groups", group, "count"), 77), (("slurm", "kill_wait_s"), 45)]
    edited = stack_edit.apply_edits(text, edits)
    removed = [line[2:] for line in ndiff(text.splitlines(), edited.splitlines()) if line.startswith("- ")]
    added = [line[2:] for line in ndiff(text.splitlines(), edited.splitlines()) if line.startswith("+ ")]
    assert all("count:" in line or "kill_wait_s:" in line for line in removed + added), (removed, added)
    assert len(added) == len(edits)
    assert len(removed) <= len(edits)


HANDWRITTEN_STACK = """\
---
config:
    muster:cluster:
        name: "quoted" # and a comment
        slurm: {default_time: 1:00:00, max_time: no}
        groups:
            gpu: # a group
                # above the first key
                count: 2
                users:
                - in block style

        # about the storage
        storage: {}
"""


@pytest.mark.parametrize(
    ("path", "value", "before", "after"),
    [
        (("groups", "gpu", "count"), 3, "                count: 2\n", "                count: 3\n"),
        (
            ("groups", "gpu", "max"),
            3,
            "                count: 2\n",
            "                max: 3\n                count: 2\n",
        ),
        (("slurm", "kill_wait_s"), 3, "max_time: no}", "max_time: no, kill_wait_s: 3}"),
        (("storage", "shared", "size_gb"), 3, "storage: {}", "storage: {shared: {size_gb: 3}}"),
        (("budget", "usd_per_hour"), 3, '        name: "', '        budget: {usd_per_hour: 3}\n        name: "'),
        (("name",), "other", 'name: "quoted" #', 'name: "other"  #'),
    ],
)
def test_edit_follows_the_style_of_the_file(path: tuple[str, ...], value: int, before: str, after: str) -> None:
    assert HANDWRITTEN_STACK.count(before) == 1
    assert stack_edit.apply_edits(HANDWRITTEN_STACK, [(path, value)]) == HANDWRITTEN_STACK.replace(before, after)


def test_advice_names_a_filesystem_size_that_is_fast_enough() -> None:
    """4800 GB at 250 MB/s per TiB are 1.17 GB/s."""
    spec = read(LUSTRE)
    assert filesystem.gb_s(spec) == pytest.approx(4800 / 1024 * 0.25)
    assert filesystem.advice(spec, 96) == ""
    size = int(filesystem.advice(spec, 4870).split()[1])
    larger = spec.storage["shared"].model_copy(update={"size_gb": size})
    assert 4870 / filesystem.gb_s(spec.model_copy(update={"storage": {"shared": larger}})) <= 300
    assert size % 2400 == 0


def test_error_suggests_more_nodes_if_nothing_fits() -> None:
    with pytest.raises(ConfigError, match=r"nodes: no layout of llama-405b fits .*; use more nodes"):
        plan(build_question(named=find_model("llama-405b"), nodes=(1,)))


def test_indivisible_batch_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"batch: 7 to 7 samples cannot be divided over .* 16 nodes"):
        plan(build_question(named=find_model("tiny-llama"), nodes=(16,), batch=Batch(7, 7)))


def test_missing_price_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"instance: there is no price of p5e\.48xlarge"):
        plan(build_question(instances=("p5e.48xlarge",), nodes=(4,)))
