"""The page of an eval, in a real browser."""

from __future__ import annotations

from pathlib import Path

from agentloop.evals.comparison import compare
from agentloop.evals.gates import Gate
from agentloop.evals.report_page import html_report, read_paths
from tests.evals.recorded_evals import recorded_eval
from tests.viewer.browser import Page


async def test_a_reader_sees_candidates_and_differences_and_opens_a_case(page: Page, tmp_path: Path) -> None:
    """The page shows what differs at once, and a click on a case shows both executions and where they part."""
    result, journal = await recorded_eval(cases=24)
    comparison = compare(result)
    paths = await read_paths(journal, comparison)
    text = html_report(result, comparison, gate=Gate("pass@1 < -5 points").check(result), paths=paths)
    path = tmp_path / "eval.html"
    path.write_text(text, encoding="utf-8")
    page.open(path.as_uri())
    page.settle()
    assert page.text("h1") == "refunds & <returns>"
    assert len(page.texts("svg.intervals")) == 5
    assert "short" in page.text("section")
    page.click("summary", "case 2")
    assert "They part in step 2" in page.text("details[open]")
    assert page.texts("details[open] li.here")[0] == 'calls refund({"order": 3, "cents": 300})'
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.resize(420, 800)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.requests == [path.as_uri()]
