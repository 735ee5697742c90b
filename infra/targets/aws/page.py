"""The tables of docs/aws.md, made from what they are about: resources, rights, software, rules, the pre-flight."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from cluster.catalog import software
from cluster.catalog.prices import Price, service_price
from cluster.catalog.software import Component
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.iam import Scope, Statement
from infra.targets.aws.resource_table import KINDS, TAGGING

_HERE = Path(__file__).parent
_VALIDATORS = tuple(sorted((_HERE / "validate").glob("*.py")))
_FLIGHT = tuple(sorted((_HERE / "preflight").glob("*.py")))
_LEVELS = {"error": "error", "warning": "warning", "make": "error or warning"}
_SAMPLE = Scope(
    partition="aws",
    region="REGION",
    account="ACCOUNT",
    cluster="CLUSTER",
    bucket_arn="arn:aws:s3:::BUCKET",
    key_arn="KEY",
    zone_id="ZONE",
    subnet_ids=("SUBNET",),
    images=("IMAGE",),
    reservations=("cr-RESERVATION", "POOL"),
    spot=True,
    budget="BUDGET",
)


def blocks() -> dict[str, str]:
    """By the name of the marks between which it stands."""
    return {
        "resources": resources(),
        "rights": rights(),
        "roles": roles(),
        "software": lock(),
        "validators": findings(_VALIDATORS),
        "preflight": findings(_FLIGHT),
    }


def resources() -> str:
    rows = (f"| `{kind.type}` | {kind.why} | {_price(kind.type, kind.prices)} |" for kind in KINDS)
    return "\n".join(["| resource | why it is there | costs |", "|---|---|---|", *rows])


def rights() -> str:
    """Every action once, by service."""
    wanted = sorted({action for kind in KINDS for action in kind.needed} | set(TAGGING))
    services = groupby(wanted, key=lambda action: action.partition(":")[0])
    rows = (f"| {name} | {', '.join(one.partition(':')[2] for one in some)} |" for name, some in services)
    return "\n".join(["| service | actions |", "|---|---|", *rows])


def roles() -> str:
    """Statements that several roles share stand once."""
    of_role = {
        "controller": iam.controller(_SAMPLE),
        "login": iam.login(_SAMPLE),
        "compute": iam.compute(_SAMPLE),
        "budget": iam.budget(_SAMPLE),
        "controller, budget spent": iam.no_launch(_SAMPLE.partition, _SAMPLE.region, _SAMPLE.account),
        "flow logs": iam.flow_logs("arn:aws:logs:REGION:ACCOUNT:log-group:/muster-CLUSTER/flow-logs"),
    }
    rows: dict[str, list[str]] = {}
    for role, statements in of_role.items():
        for statement in statements:
            rows.setdefault(_statement(statement), []).append(role)
    lines = (f"| {', '.join(names)} | {row} |" for row, names in rows.items())
    head = ["| role | may | on | only where | why no finer |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def lock() -> str:
    """Which versions nodes may have; from the table that they are held to."""
    rows = (
        f"| {one.title} | {' and '.join(sorted(one.has))} | {_pinned(one)} | {_allowed(one)} | {one.why} "
        f"([source]({one.source})) | {_read(one)} |"
        for one in software.components().values()
    )
    head = ["| software | on machines with | reviewed | allowed | why | read from |", "|---|---|---|---|---|---|"]
    image = software.image()
    return "\n".join([*head, *rows, "", f"Reviewed: [{image['name']}]({image['source']}); {image['note']}."])


def findings(files: tuple[Path, ...]) -> str:
    """Read from the source: what is not there cannot be in the table, and the other way round."""
    rows = sorted({row for file in files for row in _findings(file)})
    return "\n".join(["| code | level | says |", "|---|---|---|", *rows])


def _pinned(one: Component) -> str:
    if one.same_as:
        return f"that of {software.components()[one.same_as].title}"
    return "that of `software.training_lock`" if one.lock else one.version


def _allowed(one: Component) -> str:
    rule = f"the same as {software.components()[one.same_as].title}" if one.same_as else f"{one.least} or newer"
    return f"{rule}, or none" if one.optional else rule


def _read(one: Component) -> str:
    if one.lock:
        return "the lock file"
    return f"`{one.file}`" if one.file else f"`{one.command.split()[0]}`"


def _price(kind: str, names: tuple[str, ...]) -> str:
    told = [_told(service_price(name)) for name in names]
    if kind in ("ec2/instance:Instance", "muster:aws:Nodes"):
        told.insert(0, "by its type, `make cost`")
    return "; ".join(told) or "nothing"


def _told(price: Price) -> str:
    unit = {"GB-month": "GB and month"}.get(price.unit, price.unit)
    return f"{price.usd:g} USD per {unit}{'' if price.verified else ' (unverified)'}"


def _statement(one: Statement) -> str:
    effect = "**not** " if one.effect == "Deny" else ""
    actions = ", ".join(f"`{action}`" for action in sorted(one.actions))
    on = ", ".join(f"`{_short(name)}`" for name in one.resources)
    keys = sorted({key for condition in one.conditions.values() for key in condition})
    return f"{effect}{actions} | {on} | {', '.join(f'`{key}`' for key in keys)} | {one.reason}"


def _short(arn: str) -> str:
    return re.sub(r"^arn:aws:(\w+):(?:REGION)?:(?:ACCOUNT)?:", r"\1 ", arn).removeprefix("arn:aws:s3:::")


def _findings(file: Path) -> Iterator[str]:
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if _finds(call):
                assert isinstance(call, ast.Call)  # noqa: S101  # as _finds has it
                assert isinstance(call.func, ast.Name)  # noqa: S101
                code, _, message = (_words(argument, function, call.lineno) for argument in call.args[:3])
                yield f"| `{code}` | {_LEVELS[call.func.id]} | {re.sub('…+', '…', message.replace('|', '/'))} |"


def _finds(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _LEVELS
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
    )


def _words(node: ast.expr, function: ast.FunctionDef, before: int) -> str:
    """The text that an expression makes, with dots for what is only known later."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(part, function, before) for part in node.values)
    if isinstance(node, ast.Name) and (given := _last(node.id, function, before)):
        return _words(given, function, before)
    return "…"


def _last(name: str, function: ast.FunctionDef, before: int) -> ast.expr | None:
    """What was given to a name last before a line, also where several names are given values at once."""
    found: list[tuple[int, ast.expr]] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or node.lineno > before:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and target.id == name:
            found.append((node.lineno, value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
            found += [(node.lineno, given) for to, given in pairs if isinstance(to, ast.Name) and to.id == name]
    return max(found, key=lambda pair: pair[0])[1] if found else None
