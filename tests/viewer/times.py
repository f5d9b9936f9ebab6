"""How long the page takes for a run of 10,000 steps; `make bench-viewer` prints it."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from agentloop.service.trace import write_trace_page
from tests.viewer.browser import Browser, Page, browser_path
from tests.viewer.documents import long_trace

STEPS = 10_000

_FIRST_PAINT = "Math.round(performance.getEntriesByName('first-contentful-paint')[0]?.startTime)"
_LONGEST_TASK = """new Promise(done => {
    const observer = new PerformanceObserver(list => tasks.push(...list.getEntries().map(entry => entry.duration)));
    const tasks = [];
    observer.observe({type: 'longtask', buffered: true});
    setTimeout(() => done(Math.round(Math.max(0, ...tasks))), 200);
})"""
_SCROLL = """new Promise(done => {
    const list = document.querySelector('SELECTOR .virtual'), times = [];
    let last = performance.now(), frame = 0;
    const step = () => {
        const now = performance.now();
        if (frame > 0) times.push(now - last);
        last = now;
        list.scrollTop = (list.scrollHeight - list.clientHeight) * frame / 120;
        if (frame++ < 120) requestAnimationFrame(step);
        else done(times.sort((a, b) => a - b).map(Math.round));
    };
    requestAnimationFrame(step);
})"""


def search_ms(page: Page, text: str) -> float:
    """Return how long it takes from the last letter until the search has seen everything."""
    page.press("Escape", "/")
    page.evaluate("window.began = performance.now()")
    page.type(text)
    page.wait_for("/^[0-9,]+ found$/.test(document.querySelector('.search output')?.innerText ?? '')")
    took: float = page.evaluate("performance.now() - window.began")
    return took


def scroll_line(page: Page, view: str, selector: str) -> str:
    """Return a line about the frames while a view is scrolled from its start to its end."""
    times: list[int] = page.evaluate(_SCROLL.replace("SELECTOR", selector))
    return f"scroll {view}: frame {times[len(times) // 2]} ms median, {times[int(len(times) * 0.95)]} ms p95, {times[-1]} ms max"


def main() -> None:
    """Measure, and print."""
    path = browser_path()
    if path is None:
        sys.exit("the browser is not here; `make test` unpacks it where npm is installed")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "long.html"
        write_trace_page(file, long_trace(STEPS))
        browser = Browser(path, Path(folder))
        try:
            with browser.page() as page:
                page.open(file.as_uri())
                page.wait_for("document.querySelector('.row')")
                lines = [
                    f"a run of {STEPS:,} steps, {file.stat().st_size / 1e6:.1f} MB",
                    f"first rows: {page.wait_for(_FIRST_PAINT):,} ms after the navigation",
                    f"longest task so far: {page.evaluate(_LONGEST_TASK)} ms",
                    scroll_line(page, "the timeline", ".waterfall"),
                    f"search, one match: {search_ms(page, f'item {STEPS - 50}-3'):.0f} ms, with 120 ms of waiting for more letters",
                    f"search, every call matches: {search_ms(page, 'item'):.0f} ms",
                ]
                page.press("Escape", "2")
                page.wait_for("document.querySelector('.conversation .message')")
                lines.append(scroll_line(page, "the conversation", ".conversation"))
                page.press("3")
                page.wait_for("document.querySelectorAll('.plot canvas').length === 4")
                lines.append(f"longest task of all: {page.evaluate(_LONGEST_TASK)} ms")
        finally:
            browser.close()
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
