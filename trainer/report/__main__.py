"""`python -m trainer report RUN [--out FOLDER]`: write the page, the charts and the summary of a run."""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

from trainer.command_name import name_command
from trainer.report.figures import draw_pictures
from trainer.report.page import render_page
from trainer.report.picture import NoMatplotlibError
from trainer.report.run_folder import NoRunError, open_run
from trainer.report.summary import summarise
from trainer.report.timeline import make_chrome_trace, select_timelines


def main(argv: list[str]) -> int:
    """Run the command and return its exit status."""
    options = _parse(argv)
    try:
        run = open_run(options.run)
        pictures = [] if options.no_pictures else draw_pictures(run)
        out = options.out or options.run / "report"
        out.mkdir(parents=True, exist_ok=True)
        summary = summarise(run)
        for picture in pictures:
            (out / f"{picture.name}.png").write_bytes(picture.png)
        if timelines := select_timelines(run.timelines):
            trace = json.dumps(make_chrome_trace(timelines))
            (out / "timeline.json").write_text(trace, encoding="utf-8")
        (out / "summary.json").write_text(json.dumps(_to_json(summary), indent=2) + "\n", encoding="utf-8")
        (out / "index.html").write_text(render_page(run, summary, pictures), encoding="utf-8")
    except (NoRunError, NoMatplotlibError, OSError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2
    print(f"{run.name}: {summary['outcome']} at step {summary['step']}; page: {out / 'index.html'}")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        name_command("report"),
        description="Write a report of a run: a page with the curves and the time breakdown, and a JSON summary.",
    )
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--out", type=Path, help="folder for the report (default: RUN/report)")
    parser.add_argument("--no-pictures", action="store_true", help="leave out the charts, which need matplotlib")
    return parser.parse_args(argv)


def _to_json(value: Any) -> Any:
    """Return the value with NaN and infinities as text, because JSON does not have them."""
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
