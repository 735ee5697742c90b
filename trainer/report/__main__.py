"""`python -m trainer report RUN [--out FOLDER]`: the page, the pictures and a summary of a run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from trainer.report.figures import pictures
from trainer.report.page import page
from trainer.report.picture import NoDrawingError
from trainer.report.run_folder import NoRunError, open_run
from trainer.report.summary import summarise


def main(argv: list[str]) -> int:
    words = _words(argv)
    try:
        run = open_run(words.run)
        drawn = [] if words.no_pictures else pictures(run)
        out = words.out or words.run / "report"
        out.mkdir(parents=True, exist_ok=True)
        summary = summarise(run)
        for picture in drawn:
            (out / f"{picture.name}.png").write_bytes(picture.png)
        (out / "summary.json").write_text(json.dumps(_strict(summary), indent=2) + "\n", encoding="utf-8")
        (out / "index.html").write_text(page(run, summary, drawn), encoding="utf-8")
    except (NoRunError, NoDrawingError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{run.name}: {summary['outcome']} at step {summary['step']}; page: {out / 'index.html'}")
    return 0


def _words(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m trainer report", description="Curves and time split of a run, as a page."
    )
    parser.add_argument("run", type=Path, help="the run's folder")
    parser.add_argument("--out", type=Path, help="where the report goes; RUN/report if not given")
    parser.add_argument("--no-pictures", action="store_true", help="figures in words only: needs no matplotlib")
    return parser.parse_args(argv)


def _strict(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
