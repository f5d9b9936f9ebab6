"""Reports of evals: rows for a table, JSON, and JUnit XML; the page is in `report_page`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Final
from xml.etree.ElementTree import Element, SubElement, tostring

from attrs import frozen

from agentloop.evals.comparison import EvalComparison, EvalDifference
from agentloop.evals.gates import GateReport
from agentloop.evals.quantities import Quantity, format_change
from agentloop.evals.results import EvalResult, Trial
from agentloop.evals.statistics import Estimate
from agentloop.values.visible_text import escape_invisible

_VERDICTS: Final = {"better": "better", "worse": "worse", "equal": "no difference at all", "open": "cannot be told"}


@frozen
class ReportTable:
    """A table of a report.

    Attributes:
        title: what it shows.
        head: the names of its columns.
        rows: its rows, each with one text per column.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def format_estimate(quantity: Quantity, estimate: Estimate, *, is_share: bool | None = None) -> str:
    """Write an estimate with its interval, such as `88.2 % (80.3 % to 94.0 %)`."""
    value, low, high = (
        quantity.format(number, is_share=is_share) for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


def is_share(quantity: Quantity, estimate: Estimate) -> bool:
    """Whether an estimate is of a share, by how its interval was made."""
    return quantity.is_pass or "wilson" in estimate.method


def tables(comparison: EvalComparison) -> Sequence[ReportTable]:
    """Return the tables of a comparison: what each candidate does, and how each differs from the baseline."""
    head = ("", *comparison.candidates)
    rows = list[tuple[str, ...]]()
    for name in comparison.quantities:
        quantity, cells = Quantity.parse(name), list[str]()
        for candidate in comparison.candidates:
            each = comparison.estimates.get(candidate, {}).get(name)
            cells.append("" if each is None else format_estimate(quantity, each, is_share=is_share(quantity, each)))
        rows.append((name, *cells))
    found = [ReportTable("Candidates", head, tuple(rows))]
    if comparison.differences:
        columns = ("candidate", "", f"against {comparison.baseline}", "verdict", "p (Holm)")
        found.append(ReportTable("Differences", columns, tuple([_difference_row(d) for d in comparison.differences])))
    return found


def describe_verdict(found: EvalDifference) -> str:
    """Return the verdict in words: `perhaps` where it does not stand the correction for all comparisons of the report."""
    is_sure = found.verdict not in {"better", "worse"} or found.corrected_p <= 1 - found.estimate.confidence
    return _VERDICTS[found.verdict] if is_sure else f"perhaps {found.verdict}"


def _difference_row(found: EvalDifference) -> tuple[str, ...]:
    low, high = found.format(found.estimate.low), found.format(found.estimate.high)
    text = f"{found.format(found.estimate.value)} ({low} to {high})"
    if found.relative is not None:
        text += f", {format_change(found.relative.value)}"
    return (found.candidate, str(found.quantity), text, describe_verdict(found), format_p(found.corrected_p))


def format_p(p: float) -> str:
    """Write a p-value."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"  # noqa: PLR2004


def notes(result: EvalResult, comparison: EvalComparison) -> Sequence[str]:
    """Return what a reader has to know beside the tables: what is missing, what would settle open questions, how sure all is."""
    found = list[str]()
    planned = len(result.candidates) * len(result.cases) * result.repeats
    if result.stopped or len(result.trials) < planned:
        reason = f": {result.stopped}" if result.stopped else ""
        found.append(f"The eval is incomplete: {len(result.trials):,} of {planned:,} trials have run{reason}.")
    failed = [trial for trial in result.trials if trial.error]
    if failed:
        found.append(
            f"{len(failed):,} trials ended with an error and count as not passed; the first: {failed[0].error}"
        )
    for each in comparison.differences:
        if str(each.quantity) == "pass@1":
            found += list(_pass_notes(each))
    return found


def _pass_notes(found: EvalDifference) -> Sequence[str]:
    texts = list[str]()
    if found.left_out:
        names = ", ".join(found.left_out[:5]) + (", …" if len(found.left_out) > 5 else "")  # noqa: PLR2004
        texts.append(
            f"{len(found.left_out):,} cases are not compared, since only one side has run them as they are: {names}"
        )
    if found.verdict == "open":
        ways = [f"{found.more_repeats:,} more repeats per case"] if found.more_repeats is not None else []
        ways += [f"{found.more_cases:,} more cases"] if found.more_cases is not None else []
        would = f"; {' or '.join(ways)} would probably settle it" if ways else ""
        texts.append(
            f"Whether {found.candidate} passes more or less often than {found.baseline} cannot be told{would}."
        )
    elif describe_verdict(found).startswith("perhaps"):
        texts.append(
            f"{found.candidate} may be {found.verdict} by chance: among so many comparisons, one looks like that."
        )
    if found.power is not None:
        share, smallest = f"{100 * found.power:.0f} %", found.format(found.detectable).lstrip("+")
        texts.append(
            f"An eval like this one sees a true difference of 5 points in {share} of tries, and one of {smallest} in 80 %."
        )
    return texts


# --- JSON -------------------------------------------------------------------------------------------------------------


def report_json(result: EvalResult, comparison: EvalComparison, gate: GateReport | None = None) -> dict[str, Any]:
    """Return a report as plain JSON data; infinite ends of intervals are null."""
    return {
        "suite": result.suite,
        "baseline": comparison.baseline,
        "candidates": list(comparison.candidates),
        "cost": result.cost,
        "trials": len(result.trials),
        "confidence": comparison.confidence,
        "estimates": {
            candidate: {name: _plain(found) for name, found in each.items()}
            for candidate, each in comparison.estimates.items()
        },
        "differences": [_plain_difference(each) for each in comparison.differences],
        "cases": [
            {
                "case": each.case,
                "candidate": each.candidate,
                "difference": each.difference,
                "passed": [trial.passed for trial in each.trials],
                "baseline_passed": [trial.passed for trial in each.baseline_trials],
                "executions": [trial.execution_id for trial in each.shown],
            }
            for each in comparison.cases
        ],
        "notes": list(notes(result, comparison)),
        "gate": None
        if gate is None
        else {
            "condition": gate.condition,
            "outcome": gate.outcome,
            "findings": [
                {"candidate": each.candidate, "condition": each.condition, "is_true": each.is_true, "text": each.text}
                for each in gate.findings
            ],
        },
    }


def _plain(found: Estimate) -> Mapping[str, Any]:
    value, low, high = (number if isfinite(number) else None for number in (found.value, found.low, found.high))
    return {"value": value, "low": low, "high": high, "count": found.count, "method": found.method}


def _plain_difference(found: EvalDifference) -> Mapping[str, Any]:
    return {
        "candidate": found.candidate,
        "baseline": found.baseline,
        "quantity": str(found.quantity),
        **_plain(found.estimate),
        "relative": None if found.relative is None else _plain(found.relative),
        "verdict": found.verdict,
        "p": found.p,
        "corrected_p": found.corrected_p,
        "power": found.power,
        "detectable": found.detectable if isfinite(found.detectable) else None,
        "more_repeats": found.more_repeats,
        "more_cases": found.more_cases,
        "left_out": list(found.left_out),
    }


def report_text(result: EvalResult, comparison: EvalComparison, gate: GateReport | None = None) -> str:
    """Return a report as JSON text."""
    return json.dumps(report_json(result, comparison, gate), indent=2, ensure_ascii=False) + "\n"


# --- JUnit ------------------------------------------------------------------------------------------------------------


def junit_xml(result: EvalResult, gate: GateReport | None = None) -> str:
    """Return a result as JUnit XML, as systems for continuous integration show it.

    Each candidate is a suite, each case a test that fails when not every repeat has passed. What a gate finds is a suite of its own: there
    a failure refuses the change, and a comparison that is open is skipped.
    """
    root = Element("testsuites", name=_xml(result.suite))
    for candidate in result.candidates:
        cases: dict[str, list[Trial]] = {}
        for trial in result.of(candidate):
            cases.setdefault(trial.case, []).append(trial)
        suite = SubElement(root, "testsuite", name=_xml(f"{result.suite}: {candidate}"), tests=str(len(cases)))
        failures = errors = 0
        for case, trials in cases.items():
            seconds = sum(trial.seconds for trial in trials)
            test = SubElement(suite, "testcase", name=_xml(case), classname=_xml(candidate), time=f"{seconds:.3f}")
            failed = [trial for trial in trials if not trial.passed]
            if not failed:
                continue
            is_error = all(trial.error for trial in failed)
            errors, failures = errors + is_error, failures + (not is_error)
            message = f"{len(trials) - len(failed)} of {len(trials)} repeats passed"
            problem = SubElement(test, "error" if is_error else "failure", message=message)
            problem.text = _xml("\n".join(map(describe_failure, failed)))
        suite.set("failures", str(failures))
        suite.set("errors", str(errors))
    if gate is not None:
        _add_gate(root, gate)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _add_gate(root: Element, gate: GateReport) -> None:
    suite = SubElement(
        root, "testsuite", name="gate", tests="1", failures=str(int(gate.outcome == "fails")), errors="0"
    )
    test = SubElement(suite, "testcase", name=_xml(gate.condition), classname="gate")
    if gate.outcome == "fails":
        SubElement(test, "failure", message="the condition holds").text = _xml(str(gate))
    elif gate.outcome == "open":
        SubElement(test, "skipped", message=_xml(str(gate)))
    else:
        SubElement(test, "system-out").text = _xml(str(gate))


def describe_failure(trial: Trial) -> str:
    """Return why a trial has not passed, in one line."""
    reasons = [trial.error] if trial.error else []
    reasons += [f"{score.name}: {score.reason or 'failed'}" for score in trial.scores if score.passed is False]
    place = f" ({trial.execution_id})" if trial.execution_id else ""
    return f"repeat {trial.repeat}{place}: {'; '.join(reasons) or trial.status}"


def _xml(text: str) -> str:
    """Return a text without the characters that XML does not have."""
    return "".join([char if char in "\n\t" else escape_invisible(char) for char in text])
