"""Reports say what a comparison says: tables, JSON, JUnit XML, and one page that needs nothing else."""

from __future__ import annotations

import json
from xml.etree import ElementTree as ET

from attrs import evolve

from agentloop.evals.comparison import compare
from agentloop.evals.drawing import Axis, IntervalRow, draw_intervals
from agentloop.evals.gates import Gate
from agentloop.evals.report import junit_xml, notes, report_text, tables
from agentloop.evals.report_page import first_parting, html_report, read_paths
from agentloop.evals.statistics import Estimate
from tests.evals.made_results import make_result, mostly
from tests.evals.recorded_evals import recorded_eval


async def test_executions_part_at_the_first_decision_that_differs() -> None:
    """The second step asks for another amount; what came of it later is not the place."""
    result, journal = await recorded_eval(cases=3)
    worst = compare(result).cases[0]
    first, second = worst.shown
    parting = await first_parting(journal, first.execution_id, second.execution_id)
    assert parting is not None
    assert (parting.step, parting.where) == (2, "calls[0].arguments.cents")
    assert parting.first == 'calls refund({"order": 3, "cents": 300})'
    assert parting.second == 'calls refund({"order": 3, "cents": 400})'
    assert await first_parting(journal, "main-0-0", "short-0-0") is None


def test_tables_have_each_candidate_and_each_difference() -> None:
    """The first table has a column per candidate, the second a row per difference with its verdict."""
    comparison = compare(make_result({"main": mostly(36, 40), "short": mostly(18, 40)}))
    candidates, differences = tables(comparison)
    assert candidates.head == ("", "main", "short")
    assert candidates.rows[0] == ("pass@1", "90.0 % (76.2 % to 96.2 %)", "45.0 % (30.1 % to 60.8 %)")
    assert differences.rows[0][:2] == ("short", "pass@1")
    assert differences.rows[0][3:] == ("worse", "< 0.001")


def test_notes_say_what_is_missing_and_what_would_settle_it() -> None:
    """An eval that was stopped says so, and one that cannot tell says what it could have seen."""
    result = make_result({"main": mostly(18, 20), "same": mostly(18, 20)}, stopped="the budget of $1.00 is spent")
    result = evolve(result, trials=result.trials[:-4])
    found = notes(result, compare(result))
    assert found[0] == "The eval is incomplete: 116 of 120 trials have run: the budget of $1.00 is spent."
    assert any("cannot be told" in note and "more cases would probably settle it" in note for note in found)
    assert any("sees a true difference of 5 points" in note for note in found)


def test_json_has_what_the_page_has() -> None:
    """A program reads estimates, differences, cases and the gate; ends that are infinite are null."""
    result = make_result({"main": mostly(1, 1), "short": mostly(0, 1)})
    data = json.loads(report_text(result, compare(result), Gate("pass@1 < 0.1").check(result)))
    assert data["estimates"]["main"]["cost"] == {
        "value": 0.01,
        "low": None,
        "high": None,
        "count": 1,
        "method": "one case",
    }
    assert data["differences"][0]["verdict"] == "open"
    assert data["cases"][0]["passed"] == [False] * 3
    assert data["gate"]["outcome"] == "open"


def test_junit_has_a_test_per_case_and_one_for_the_gate() -> None:
    """A case fails when a repeat does, with the reasons; the gate is a test of its own."""
    result = make_result({"main": mostly(2, 3), "short": [[True, False, False]] * 3})
    broken = evolve(result.trials[-1], error="no route to the \x00 model", scores=())
    result = evolve(result, trials=[*result.trials[:-1], broken])
    root = ET.fromstring(junit_xml(result, Gate("cost > 1").check(result)))
    suites = {suite.get("name"): suite for suite in root}
    assert suites["refunds: main"].get("failures") == "1"
    failure = suites["refunds: short"].find("testcase/failure")
    assert failure is not None
    assert failure.get("message") == "1 of 3 repeats passed"
    assert failure.text is not None
    assert "repeat 1 (short-0-1): right: the refund is missing" in failure.text
    assert suites["gate"].get("failures") == "0"
    assert (
        ET.fromstring(junit_xml(result, Gate("cost > 0.001").check(result))).find(
            ".//testsuite[@name='gate']/testcase/failure"
        )
        is not None
    )


async def test_the_page_has_all_of_it_and_escapes_what_others_wrote() -> None:
    """Candidates, differences, cases with both executions and where they part; text of models and suites is never markup."""
    result, journal = await recorded_eval()
    comparison = compare(result)
    paths = await read_paths(journal, comparison)
    page = html_report(result, comparison, gate=Gate("pass@1 < -5 points").check(result), paths=paths)
    assert "<title>refunds &amp; &lt;returns&gt;: eval</title>" in page
    assert "They part in <b>step 2</b>, at <code>calls[0].arguments.cents</code>." in page
    assert "&lt;b&gt;order 3&lt;/b&gt;" in page
    assert "<b>order" not in page
    assert "<script" not in page
    assert page.count("<details>") == 12
    assert 'class="gate open"' in page


async def test_the_page_leaves_out_executions_that_are_elsewhere() -> None:
    """A baseline of another machine has no executions here; its cases have verdicts all the same."""
    result, journal = await recorded_eval(cases=3)
    elsewhere = evolve(result, trials=[evolve(trial, execution_id=f"x{trial.execution_id}") for trial in result.trials])
    comparison = compare(elsewhere)
    assert (await read_paths(journal, comparison)).paths == {}
    assert "the refund is missing" in html_report(elsewhere, comparison)


def test_a_drawing_has_its_intervals_within_its_axis() -> None:
    """Bars begin and end on the axis, and infinite ones at its ends."""
    rows = [
        IntervalRow("a", Estimate(0.5, 0.4, 0.6, 10, "wilson")),
        IntervalRow("b", Estimate(1, -float("inf"), 2, 1, "x")),
    ]
    axis = Axis.around([row.estimate for row in rows], str)
    assert axis.low < 0.4
    assert axis.high > 2
    assert all(axis.low <= tick <= axis.high + 1e-9 for tick in axis.ticks())
    drawing = ET.fromstring(draw_intervals(rows, axis, title="<two>", has_style=True))
    bars = [line for line in drawing.iter("{http://www.w3.org/2000/svg}line") if line.get("class") == "range"]
    assert bars[1].get("x1") == f"{axis.place(axis.low):.1f}"
    assert drawing.get("aria-label") == "<two>"
