"""Load a page in a headless browser at desktop or phone size and report what it shows."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from setup import apt

LOOK = """
<pre id="seen"></pre>
<script>
addEventListener("error", event => { window.wrong = (window.wrong || []).concat(String(event.message)); }, true);
addEventListener("load", () => {
  const shown = box => box.width > 100 && box.height > 60;
  const inside = (one, page) => one.left >= -1 && one.right <= page + 1;
  const width = document.documentElement.clientWidth;
  const pictures = [...document.querySelectorAll("figure svg")];
  const words = [...document.querySelectorAll("figure svg")].map(svg =>
    [...svg.querySelectorAll("text")].filter(text => {
      const word = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      return word.left < frame.left - 2 || word.right > frame.right + 2 || word.bottom > frame.bottom + 2;
    }).map(text => text.textContent)).flat();
  document.getElementById("seen").textContent = JSON.stringify({
    width, wide: document.documentElement.scrollWidth, pictures: pictures.length,
    shown: pictures.filter(svg => shown(svg.getBoundingClientRect())).length,
    outside: [...document.querySelectorAll("main > *")].filter(e => !inside(e.getBoundingClientRect(), width)).length,
    cut: words, fetched: performance.getEntriesByType("resource").map(entry => entry.name),
    text: document.querySelector("main").innerText, wrong: window.wrong || [],
  });
});
</script>
"""


@dataclass(frozen=True)
class Seen:
    width: int
    wide: int
    """Width of all content in pixels; the page scrolls sideways if it exceeds `width`."""
    pictures: int
    shown: int
    outside: int
    """Sections that extend beyond the page."""
    cut: list[str]
    """Text of pictures that extends beyond their edge."""
    fetched: list[str]
    text: str
    wrong: list[str]


def look(page: Path, width: int, height: int = 900) -> Seen:
    browser = apt.find_browser()
    assert browser, "no browser is installed: run python3 -m setup browser"
    watched = page.with_name(f"watched-{width}.html")
    watched.write_text(page.read_text().replace("</body>", f"{LOOK}</body>"))
    # No sandbox: tests may run as root, and the page is ours. Nothing outside is reachable from it.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    options.append(f"--window-size={width},{height}")
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={page.parent / f'browser-{width}'}"]
    done = subprocess.run(
        [browser, *options, watched.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    text = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text, done.stderr[-2000:]
    return Seen(**json.loads(html.unescape(text.group(1))))
