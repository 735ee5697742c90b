"""Load a page in a headless browser at desktop or phone size and report what it shows."""

from __future__ import annotations

import html
import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from setup import apt

PROBE_SCRIPT = """
<pre id="probe"></pre>
<script>
addEventListener("error", event => { window.wrong = (window.wrong || []).concat(String(event.message)); }, true);
addEventListener("load", () => {
  const shown = box => box.width > 100 && box.height > 60;
  const inside = (box, page) => box.left >= -1 && box.right <= page + 1;
  const width = document.documentElement.clientWidth;
  const pictures = [...document.querySelectorAll("figure svg")];
  const cut = pictures.map(svg =>
    [...svg.querySelectorAll("text")].filter(text => {
      const label = text.getBoundingClientRect(), frame = svg.getBoundingClientRect();
      return label.left < frame.left - 2 || label.right > frame.right + 2 || label.bottom > frame.bottom + 2;
    }).map(text => text.textContent)).flat();
  document.getElementById("probe").textContent = JSON.stringify({
    width, wide: document.documentElement.scrollWidth, pictures: pictures.length,
    shown: pictures.filter(svg => shown(svg.getBoundingClientRect())).length,
    outside: [...document.querySelectorAll("main > *")].filter(e => !inside(e.getBoundingClientRect(), width)).length,
    cut, fetched: performance.getEntriesByType("resource").map(entry => entry.name),
    text: document.querySelector("main").innerText, wrong: window.wrong || [],
  });
});
</script>
"""


@dataclass(frozen=True)
class PageView:
    """Measurements of a page as a browser rendered it."""

    width: int
    wide: int
    """Width of all content in pixels; the page scrolls sideways if it exceeds `width`."""
    pictures: int
    shown: int
    """Pictures of a visible size."""
    outside: int
    """Sections that extend beyond the page."""
    cut: list[str]
    """Text of pictures that extends beyond their edge."""
    fetched: list[str]
    """Addresses that the page loaded besides itself."""
    text: str
    wrong: list[str]
    """Messages of script errors."""


def view_page(page: Path, width: int, height: int = 900) -> PageView:
    browser = apt.find_browser()
    assert browser, "no browser is installed: run python3 -m setup browser"
    probed_page = page.with_name(f"probed_page-{width}.html")
    probed_page.write_text(page.read_text().replace("</body>", f"{PROBE_SCRIPT}</body>"))
    # Tests may run as root, where the sandbox does not start. The page is our own, and no host name resolves.
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"]
    options.append(f"--window-size={width},{height}")
    options += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={page.parent / f'browser-{width}'}"]
    result = subprocess.run(
        [browser, *options, probed_page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    text = re.search(r'<pre id="probe">(.*?)</pre>', result.stdout, re.DOTALL)
    assert text, result.stderr[-2000:]
    return PageView(**json.loads(html.unescape(text.group(1))))
