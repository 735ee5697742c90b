"""Words that could name anything are rejected as names of variables, functions, classes and fields.

`python -m tests.test_plain_names` prints their places and their number in each room.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
BANNED_NAMES = frozenset({"found", "one", "said", "told", "asked", "known", "wanted", "made", "kept", "rest"})
# A file without these words in its code is not parsed, which takes longer than a search.
BANNED_WORD = re.compile(rf"\b_*({'|'.join(sorted(BANNED_NAMES))})\b", re.IGNORECASE)
# What is not code: most of these words are in sentences. An f-string also has code, and so is searched.
COMMENT_OR_STRING = re.compile(
    r"#[^\n]*|(?P<f>[rR]?[fF][rR]?)?"
    r"""(?:"{3}(?:[^\\]|\\.)*?"{3}|'{3}(?:[^\\]|\\.)*?'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')""",
    re.DOTALL,
)


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of everything that the code binds.

    That is: targets of assignments, loops, comprehensions, `with`, `except`, `match` and `:=`, parameters, fields,
    attributes that are assigned to, names of functions and classes, and names given by `import ... as`.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.ClassDef(name=name):
                yield node.lineno, name.lower()
            case (
                ast.ExceptHandler(name=str(name))
                | ast.MatchAs(name=str(name))
                | ast.MatchStar(name=str(name))
                | ast.MatchMapping(rest=str(name))
            ):
                yield node.lineno, name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((node.lineno, alias.asname) for alias in aliases if alias.asname)


def banned_names(path: Path) -> list[str]:
    """Return `file:line: name` for every banned name that a file binds."""
    text = path.read_text()
    if not BANNED_WORD.search(COMMENT_OR_STRING.sub(lambda match: match[0] if match["f"] else '""', text)):
        return []
    names = bound_names(ast.parse(text, str(path)))
    where = path.relative_to(REPO).as_posix() if path.is_relative_to(REPO) else path.name
    return [f"{where}:{line}: {name}" for line, name in sorted(names) if name.lstrip("_") in BANNED_NAMES]


def sources() -> list[Path]:
    """Return every Python file of the repository."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=REPO, text=True, capture_output=True, check=True).stdout
    return [path for name in listed.splitlines() if (path := REPO / name).is_file()]


def test_no_banned_name_is_bound() -> None:
    problems = [line for path in sources() for line in banned_names(path)]
    assert problems == [], "these names say nothing; choose a noun that says what the value holds:\n" + "\n".join(
        problems
    )


@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "found: int = 1",
        "a, (found, *b) = x",
        "found += 1",
        "self.found = 1",
        "for found in x: pass",
        "[y for found in x]",
        "with x as found: pass",
        "try: pass\nexcept E as found: pass",
        "def f(found): pass",
        "def f(*found): pass",
        "def f(*, found=1): pass",
        "lambda found: 1",
        "def found(): pass",
        "async def _found(): pass",
        "class Found: pass",
        "class A:\n    found: int",
        "(found := 1)",
        "import x as found",
        "match x:\n    case [found]: pass",
        "match x:\n    case {**found}: pass",
        "f'{[0 for found in x]}'",
        "x = '\"'; found = '\"'",
        'x = \'"""\'\nfound = \'"""\'',
        "x = \"'''\"\nfound = \"'''\"",
        r"x = r'\\'; found = '\\'",
        "x = '#'; found = 1",
        "# it's \"\nfound = 1",
        'x = """\n"\\""" """; found = 1',
    ],
)
def test_every_kind_of_binding_is_detected(code: str, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(code)
    (problem,) = banned_names(file)
    assert problem.startswith("code.py:")
    assert problem.endswith("ound")


@pytest.mark.parametrize("code", ["f(found=1)", "x.found", "print(found)", "founder = 1", "'found'"])
def test_uses_of_a_name_are_allowed(code: str, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text(code)
    assert banned_names(file) == []


if __name__ == "__main__":
    everything = [line for path in sources() for line in banned_names(path)]
    print("\n".join(everything))
    for room, number in sorted(Counter(line.partition("/")[0] for line in everything).items()):
        print(f"{room:12} {number}")
