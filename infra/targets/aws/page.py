"""The tables of docs/aws.md, generated from the code: resources, permissions, software, validators, the pre-flight."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import groupby
from pathlib import Path

from cluster.catalog import software
from cluster.catalog.prices import Price, service_price
from cluster.catalog.software import Component
from infra.targets.aws.plan import iam
from infra.targets.aws.plan.policy import Scope, Statement
from infra.targets.aws.resource_table import EVERY_STACK, KINDS

_HERE = Path(__file__).parent
_VALIDATORS = tuple(sorted((_HERE / "validate").glob("*.py")))
_PREFLIGHT = (_HERE / "account_types.py", *sorted((_HERE / "preflight").glob("*.py")))
_LEVELS = {"error": "error", "warning": "warning", "make": "error or warning"}
_SAMPLE = Scope(
    partition="aws",
    region="REGION",
    account="ACCOUNT",
    cluster="CLUSTER",
    bucket_arn="arn:aws:s3:::BUCKET",
    key_arn="KEY",
    zone_id="ZONE",
    vpc_id="VPC",
    subnet_ids=("SUBNET",),
    images=("IMAGE",),
    instance_types=("TYPE",),
    security_groups=("GROUP",),
    reservations=("cr-RESERVATION", "POOL"),
    spot=True,
    budget="BUDGET",
    alerts=True,
)


def blocks() -> dict[str, str]:
    """Return the tables by the name of their markers in the page."""
    return {
        "resources": resources(),
        "rights": rights(),
        "roles": roles(),
        "software": lock(),
        "validators": findings(_VALIDATORS),
        "preflight": findings(_PREFLIGHT),
    }


def resources() -> str:
    """Return the table of resources with their reasons and prices."""
    rows = (f"| `{kind.type}` | {kind.why} | {_price(kind.type, kind.prices)} |" for kind in KINDS)
    return "\n".join(["| resource | why it exists | costs |", "|---|---|---|", *rows])


def rights() -> str:
    """Return the table of IAM actions by service."""
    actions = sorted({action for kind in KINDS for action in kind.required_actions} | set(EVERY_STACK))
    services = groupby(actions, key=lambda action: action.partition(":")[0])
    rows = (f"| {name} | {', '.join(action.partition(':')[2] for action in group)} |" for name, group in services)
    return "\n".join(["| service | actions |", "|---|---|", *rows])


def roles() -> str:
    """Return the table of the nodes' permissions; a statement that several roles share is listed once."""
    statements_by_role = {
        "controller": iam.controller(_SAMPLE),
        "login": iam.login(_SAMPLE),
        "compute": iam.compute(_SAMPLE),
        "budget": iam.budget(_SAMPLE),
        "controller, budget spent": iam.no_launch(_SAMPLE.partition, _SAMPLE.region, _SAMPLE.account),
        "snapshots": iam.snapshots(_SAMPLE),
        "flow logs": iam.flow_logs("arn:aws:logs:REGION:ACCOUNT:log-group:/muster-CLUSTER/flow-logs"),
    }
    rows: dict[str, list[str]] = {}
    for role, statements in statements_by_role.items():
        for statement in statements:
            rows.setdefault(_statement(statement), []).append(role)
    lines = (f"| {', '.join(names)} | {row} |" for row, names in rows.items())
    head = ["| role | may | on | only where | why not narrower |", "|---|---|---|---|---|"]
    return "\n".join([*head, *lines])


def lock() -> str:
    """Return the table of software versions that nodes may have."""
    rows = (
        f"| {part.title} | {' and '.join(sorted(part.has))} | {_pinned(part)} | {_allowed(part)} | {part.why} "
        f"([source]({part.source})) | {_read(part)} |"
        for part in software.components().values()
    )
    head = ["| software | on machines with | reviewed | allowed | why | read from |", "|---|---|---|---|---|---|"]
    image = software.image()
    return "\n".join([*head, *rows, "", f"Reviewed: [{image['name']}]({image['source']}); {image['note']}."])


def findings(files: tuple[Path, ...]) -> str:
    """Return the table of issues that the source files create; it is read from the source, so it is complete."""
    rows = sorted({row for file in files for row in _read_findings(file)})
    return "\n".join(["| code | level | message |", "|---|---|---|", *rows])


def _pinned(component: Component) -> str:
    if component.same_as:
        return f"that of {software.components()[component.same_as].title}"
    return "that of `software.training_lock`" if component.lock else component.version


def _allowed(component: Component) -> str:
    same_as = component.same_as
    rule = f"the same as {software.components()[same_as].title}" if same_as else f"{component.least} or newer"
    return f"{rule}, or none" if component.optional else rule


def _read(component: Component) -> str:
    if component.lock:
        return "the lock file"
    return f"`{component.file}`" if component.file else f"`{component.command.split()[0]}`"


def _price(kind: str, names: tuple[str, ...]) -> str:
    prices = [_format_price(service_price(name)) for name in names]
    if kind in ("ec2/instance:Instance", "muster:aws:Nodes"):
        prices.insert(0, "by instance type, see `muster cost`")
    return "; ".join(prices) or "nothing"


def _format_price(price: Price) -> str:
    unit = {"GB-month": "GB and month"}.get(price.unit, price.unit)
    return f"{price.usd:g} USD per {unit}{'' if price.verified else ' (unverified)'}"


def _statement(statement: Statement) -> str:
    effect = "**not** " if statement.effect == "Deny" else ""
    actions = ", ".join(f"`{action}`" for action in sorted(statement.actions))
    on = ", ".join(f"`{_short(name)}`" for name in statement.resources)
    keys = sorted({key for condition in statement.conditions.values() for key in condition})
    return f"{effect}{actions} | {on} | {', '.join(f'`{key}`' for key in keys)} | {statement.reason}"


def _short(arn: str) -> str:
    return re.sub(r"^arn:aws:(\w+):(?:REGION)?:(?:ACCOUNT)?:", r"\1 ", arn).removeprefix("arn:aws:s3:::")


@cache
def _read_findings(file: Path) -> tuple[str, ...]:
    """Return the rows of a source file, which does not change while this process runs."""
    return tuple(_findings(file))


def _findings(file: Path) -> Iterator[str]:
    for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in ast.walk(function):
            if _creates_issue(call):
                assert isinstance(call, ast.Call)  # noqa: S101  # as _creates_issue checks
                assert isinstance(call.func, ast.Name)  # noqa: S101
                code, _, message = (_text(argument, function, call.lineno) for argument in call.args[:3])
                yield f"| `{code}` | {_LEVELS[call.func.id]} | {re.sub('…+', '…', message.replace('|', '/'))} |"


def _creates_issue(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _LEVELS
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
    )


def _text(node: ast.expr, function: ast.FunctionDef, before: int) -> str:
    """Return the text of an expression, with dots for values that exist only at run time."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, function, before) for part in node.values)
    if isinstance(node, ast.Name) and (value := _last_value(node.id, function, before)):
        return _text(value, function, before)
    return "…"


def _last_value(name: str, function: ast.FunctionDef, before: int) -> ast.expr | None:
    """Return the last expression that is assigned to a name before a line, alone or as part of a tuple."""
    assigned: list[tuple[int, ast.expr]] = []
    for node in ast.walk(function):
        if not isinstance(node, ast.Assign) or node.lineno > before:
            continue
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Name) and target.id == name:
            assigned.append((node.lineno, value))
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = zip(target.elts, value.elts, strict=False)
            assigned += [(node.lineno, item) for to, item in pairs if isinstance(to, ast.Name) and to.id == name]
    return max(assigned, key=lambda pair: pair[0])[1] if assigned else None
