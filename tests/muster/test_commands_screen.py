"""Output in a window of 100 columns: tables without truncated cells, and aligned lines of wrapped errors."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from cluster.inventory import Inventory
from infra.engine.stop import Stop
from infra.receipt import Item, Receipt
from infra.targets.facts import Facts, Machine, Slurm, SlurmNode
from muster.commands import screen, status
from muster.commands.receipt_table import build_items_table
from muster.commands.up import list_next_steps
from slurm.control.named_jobs import ListedJob
from slurm.control.pending_reasons import describe_reason

REASON = "slurmd on the node has been silent for 300 s and the health check before that said that its disk is full"


def render(what: RenderableType, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(what)
    return out.getvalue()


def facts() -> Facts:
    common = {"address": "10.0.0.1", "host_key": "k", "machine_id": "m", "cpus": 128, "memory_mb": 2_000_000}
    gpus = {"kind": "simulated", "count": 8, "type": "h100"}
    nodes = [
        {"name": "controller", "role": "controller"} | common,
        {"name": "training-1", "role": "compute", "group": "training", "gpus": gpus} | common,
    ]
    inventory = Inventory.model_validate({"cluster": "c", "target": "local", "nodes": nodes})
    slurm = Slurm(nodes={"training-1": SlurmNode("drained*", reason=REASON)})
    return Facts(
        inventory, inventory.nodes, {node.name: Machine("running", 360_000.0) for node in inventory.nodes}, slurm
    )


def test_long_reason_does_not_squeeze_the_node_table() -> None:
    table, broken = status.build_nodes_table(facts())
    text = render(table)
    for cell in ("training-1", "compute", "drained*", "128", "1953.1 GiB", "8 h100", "100 h 0 min"):
        assert cell in text
    assert "…" not in text
    assert broken == [f"training-1 ({REASON})"]


def test_a_terminal_of_80_columns_shows_each_cell_of_the_demo() -> None:
    wide = facts()
    nodes = tuple(node.model_copy(update={"memory_mb": 1536}) for node in wide.nodes)
    up = {node.name: Machine("running", 1152.0) for node in nodes}
    # The longest state of a node that works.
    small = replace(wide, nodes=nodes, machines=up, slurm=Slurm(nodes={"training-1": SlurmNode("allocated")}))
    text = render(status.build_nodes_table(small)[0], width=80)
    line = next(line for line in text.splitlines() if "training-1" in line)
    for cell in ("training-1", "allocated", "1.5 GiB", "8 h100", "19 min 12 s"):
        assert cell in line
    assert "…" not in text


def test_nodes_with_simulated_gpus_are_named_below_the_table() -> None:
    nodes = facts().nodes
    note = status.describe_simulated_gpus(nodes)
    assert note == "simulated on training-1: Slurm schedules them, but they do not compute"
    real = [node.model_copy(update={"gpus": node.gpus.model_copy(update={"kind": "real"})}) for node in nodes]
    assert status.describe_simulated_gpus(real) == ""


def test_a_terminal_of_80_columns_shows_each_resource_of_a_receipt_whole() -> None:
    demo = [("container", "muster-demo-controller"), ("volume", "muster-demo-slurm_accounting")]
    longer = [("volume", "muster-a-cluster-with-a-name-slurm_accounting")]
    for resources in (demo, longer):
        items = tuple(Item(kind, name, "2026-01-01T00:00:00+00:00", removed=True) for kind, name in resources)
        text = render(build_items_table(Receipt("s", "c", "2026-01-01T10:09:59+00:00", 1.0, items)), width=80)
        assert "…" not in text
        for kind, _ in resources:
            assert re.search(rf"removed +{kind} .* 2026-01-01 00:00 .* 10 h 9 min", text)
    # A name that is too long continues on the next line.
    column = text.splitlines()[0].index("name")
    assert "".join(line[column:].split()[0] for line in text.splitlines()[2:]) == longer[0][1]


def test_switches_above_nodes_are_shown_where_they_are_known() -> None:
    flat = facts()
    placed = [node.model_copy(update={"place": ("pod1", "leaf1")}) if node.group else node for node in flat.nodes]
    assert "switch" not in render(status.build_nodes_table(flat)[0])
    text = render(status.build_nodes_table(replace(flat, nodes=tuple(placed)))[0])
    assert "switch" in text
    assert "pod1/leaf1" in text


def test_long_reason_does_not_squeeze_the_queue_table() -> None:
    job = ListedJob("1234567", "alice", "training", "PENDING", "10-12:00:00", "128", f"({REASON})", "pretraining-run")
    text = render(status.build_queue_table(Slurm(jobs=(job,))))
    for cell in ("1234567", "pretraining-run", "alice", "training", "pending", "10-12:00:00", "128"):
        assert cell in text.splitlines()[2]
    assert "…" not in text


@pytest.mark.parametrize("lead", ["✗ ", "    ", "  fix: "])
def test_wrapped_error_keeps_its_indent(lead: str) -> None:
    out = io.StringIO()
    screen.print_hanging(Console(file=out, width=40, force_terminal=True, color_system=None), Text(lead), REASON)
    first, *continued = out.getvalue().splitlines()
    assert first.startswith(lead)
    assert continued
    assert all(line.startswith(" " * len(lead)) and line[len(lead)] != " " and len(line) <= 40 for line in continued)


def test_wrapped_description_of_a_list_continues_below_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None)
    monkeypatch.setattr(screen, "err", lambda: console)
    screen.print_stop(Stop(f"allowed, one of\n  dead-node  {REASON}", "choose one"))
    head, first, *continued, fix = out.getvalue().splitlines()
    assert (head, fix) == ("✗ allowed, one of", "  fix: choose one")
    assert first.startswith("    dead-node  slurmd on")
    assert continued
    assert all(line.startswith(" " * 15) and line[15] != " " for line in continued)


def test_wrapped_note_is_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=True, color_system=None)
    monkeypatch.setattr(screen, "out", lambda: console)
    screen.say(f"{REASON}\nshort")
    first, *continued, last = out.getvalue().splitlines()
    assert " ".join([first, *(line.removeprefix("  ") for line in continued)]) == REASON
    assert continued
    assert all(line.startswith("  ") and len(line) <= 40 for line in continued)
    assert last == "short"


def test_word_that_is_longer_than_its_column_is_not_cut() -> None:
    table = screen.new_table("part", "what", wraps=("what",))
    table.add_row("groups.gpu", "gpu-h100-sxm/8gpu-128vcpu-1600gb")
    text = render(table, 30)
    assert "gpu-h100-sxm/8gpu-128vcpu-1600gb" in "".join(line[10:].strip() for line in text.splitlines())


def test_log_is_neither_wrapped_nor_padded(capsys: pytest.CaptureFixture[str]) -> None:
    screen.out.cache_clear()
    table = screen.new_table("what", "note")
    table.add_row("a", "long note")
    table.add_row("b", "x")
    screen.out().print(table)
    screen.say("word " * 100 + "end")
    lines = capsys.readouterr().out.splitlines()
    screen.out.cache_clear()
    assert lines[2:] == ["a     long note", "b     x", "word " * 100 + "end"]
    assert lines[0] == "what  note"


def test_error_is_one_line_in_a_log() -> None:
    out = io.StringIO()
    screen.print_hanging(Console(file=out, width=40), Text("✗ "), REASON)
    assert out.getvalue() == f"✗ {REASON}\n"


def test_hints_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    screen.print_next_steps(list_next_steps("local"))
    together = capsys.readouterr().out.splitlines()
    assert together[0].startswith("  make ssh ")
    assert together[0].endswith("  a shell on the login node")
    screen.print_next_steps(list_next_steps("a-stack-with-a-name"))
    apart = capsys.readouterr().out.splitlines()
    assert apart[:2] == ["  make ssh STACK=a-stack-with-a-name", "       a shell on the login node"]
    assert all(len(line) <= 80 for line in [*together, *apart])


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("(Resources)", "waiting for nodes to be free"),
        ("PartitionConfig", "the request exceeds the limits of the partition"),
        ("(ReqNodeNotAvail, UnavailableNodes:gpu-1)", "a requested node is down or drained, UnavailableNodes:gpu-1"),
        ("(BeginTime)", "BeginTime"),
    ],
)
def test_reasons_of_waiting_jobs_are_in_plain_words(reason: str, expected: str) -> None:
    assert describe_reason(reason) == expected
    job = ListedJob("7", "ann", "gpu", "PENDING", "0:00", "2", reason, "train")
    shown = " ".join(render(status.build_queue_table(Slurm(jobs=(job,))), 200).split())
    assert (expected in shown) is reason.startswith("(")
