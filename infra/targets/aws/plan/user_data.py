"""User data: the script with which a bare machine downloads the bundle and sets itself up. It may be run again."""

from __future__ import annotations

import ast
import io
import shlex
import tokenize
from datetime import datetime
from functools import cache
from pathlib import Path

from bootstrap.action import FETCH_LISTS_EARLY, LOCK_LISTS
from bootstrap.package_archive import ARCHIVE, NAME
from bootstrap.steps.cloud.system import APT_CONF, LIST_SETTINGS
from cluster.inventory import InterpreterArchive
from infra.targets.aws.node import parameters

SCRIPT = (Path(__file__).parent / "user_data.sh").read_text(encoding="utf-8")
# Included in the script, because they fetch everything else; they need only Python itself.
EARLY_FILES = tuple(f"infra/targets/aws/node/{name}.py" for name in ("imds", "signed", "early"))
ROOT = Path(__file__).parents[4]
MAX_BYTES = 16 * 1024
"""AWS's limit, before base64."""


def user_data(  # noqa: PLR0913
    *,
    bucket: str,
    digest: str,
    sha256: str,
    region: str,
    role: str,
    cluster: str,
    python: InterpreterArchive,
    program: str = "set_up",
    name: str = "",
    ends_at: datetime | None = None,
) -> str:
    """Return the script as plain text, not yet encoded in base64.

    `python` is for images without a recent one; `program` is the module of infra/targets/aws/node that it runs, with
    its options; `name` is for machines that are no node, and under which they report. At `ends_at` the machine ends
    itself.
    """
    settings = {
        "cluster": cluster,
        "role": role,
        "region": region,
        "bucket": bucket,
        "key": parameters.bundle(sha256),
        "digest": digest,
        "sha256": sha256,
        "python_url": python.url,
        "python_sha256": python.sha256,
        "tag": parameters.NODE_TAG,
        "program": program,
        "name": name,
        "nodes": parameters.nodes(cluster),
        "ends_at": f"{ends_at.timestamp():.0f}" if ends_at else "",
    }
    lines = "\n".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
    files = "\n\n".join(_render_file(name) for name in EARLY_FILES)
    texts = {
        "@SETTINGS@": lines,
        "@FILES@": files,
        "@APT_CONF@": APT_CONF,
        "@LIST_SETTINGS@": shlex.join(LIST_SETTINGS.splitlines()),
        "@LOCK_LISTS@": LOCK_LISTS,
        "@FETCH_LISTS@": FETCH_LISTS_EARLY.strip(),
        "@ARCHIVE_KEY@": parameters.packages(NAME),
        "@ARCHIVE@": ARCHIVE,
    }
    text = _drop_comments(SCRIPT)
    for placeholder, content in texts.items():
        text = text.replace(placeholder, content)
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"user data has {size} bytes, AWS allows {MAX_BYTES}: shorten {', '.join(EARLY_FILES)}")
    return text


def _render_file(name: str) -> str:
    content = _shorten((ROOT / name).read_text(encoding="utf-8"))
    return f"cat >\"$early/{name}\" <<'MUSTER_FILE'\n{content}MUSTER_FILE"


def _drop_comments(script: str) -> str:
    """Return the script without empty lines and comments, except those that describe it.

    The rest are for readers of this repository.
    """
    lines = script.splitlines(keepends=True)
    top = next(number for number, line in enumerate(lines) if not line.startswith("#"))
    described = [line for line in lines[:top] if not line.startswith("# shellcheck")]
    return "".join([*described, *(line for line in lines[top:] if line.strip() and not line.lstrip().startswith("#"))])


@cache
def _shorten(source: str) -> str:
    """Return Python source without docstrings, comments and empty lines, which would take a quarter of the space."""
    documented = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    dropped = {line for text in documented for line in range(text.lineno, (text.end_lineno or 0) + 1)}
    lines = dict(enumerate(source.splitlines(keepends=True), 1))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line, column = token.start
        if token.type == tokenize.COMMENT:
            lines[line] = lines[line][:column].rstrip() + "\n"
    return "".join(line for number, line in lines.items() if number not in dropped and line.strip())
