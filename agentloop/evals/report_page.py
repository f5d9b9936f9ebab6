"""The page of an eval: one HTML file without scripts, which needs nothing from a network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, Final

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.fork_effects import is_same_call
from agentloop.durable.replaying.comparison import first_differences
from agentloop.durable.replaying.divergence import NOTHING, Difference
from agentloop.errors import UnknownExecution
from agentloop.evals.comparison import CaseDifference, EvalComparison, EvalDifference
from agentloop.evals.drawing import STYLE, Axis, IntervalRow, draw_intervals
from agentloop.evals.gates import GateReport
from agentloop.evals.quantities import Quantity, format_cost
from agentloop.evals.report import describe_failure, describe_verdict, format_estimate, format_p, is_share, notes
from agentloop.evals.results import EvalResult, Trial
from agentloop.values.json import as_frozen_dict
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value
from agentloop.values.visible_text import escape_invisible

_MOST_CASES: Final = 200
_MOST_TEXT: Final = 600
_MOST_STEPS: Final = 30


@frozen(eq=False, repr=False)
class CasePaths(Value):
    """What the two executions of each shown case decide.

    Attributes:
        paths: by candidate and case.
    """

    paths: Mapping[tuple[str, str], TwoPaths] = field(factory=dict, converter=as_frozen_dict)


async def read_paths(journal: CanJournal, comparison: EvalComparison, *, limit: int = 50) -> CasePaths:
    """Read from a journal where the executions of cases part whose verdicts differ.

    Args:
        journal: the journal of the eval.
        comparison: the comparison that the page shows.
        limit: the largest number of cases that are read.

    Returns:
        What was found. A case whose executions are not both in the journal, such as those of a baseline from another machine, is left out.

    Raises:
        JournalCorrupt: records are damaged.
    """
    found: dict[tuple[str, str], TwoPaths] = {}
    for each in _ordered(comparison.cases)[:limit]:
        first, second = each.shown
        if each.difference and first.execution_id and second.execution_id:
            try:
                found[each.candidate, each.case] = await two_paths(journal, first.execution_id, second.execution_id)
            except UnknownExecution:
                continue
    return CasePaths(found)


def html_report(
    result: EvalResult,
    comparison: EvalComparison,
    *,
    gate: GateReport | None = None,
    paths: CasePaths | None = None,
) -> str:
    """Return the page of an eval.

    Args:
        result: the result.
        comparison: its comparison.
        gate: what a gate says about it; None without one.
        paths: what the executions of cases decide; without it, cases have verdicts and reasons only.
    """
    body = "".join(_body(result, comparison, gate, paths or CasePaths()))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        "<!doctype html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{_text(result.suite)}: eval</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _body(result: EvalResult, comparison: EvalComparison, gate: GateReport | None, paths: CasePaths) -> Iterator[str]:
    cost = "" if result.cost is None else f" · {format_cost(result.cost)}"
    counts = (
        f"{len(comparison.candidates)} candidates · {len(result.cases):,} cases · {result.repeats} repeats · "
        f"{len(result.trials):,} trials{cost}"
    )
    yield f"<header><h1>{_text(result.suite)}</h1><p>{counts}</p></header>"
    if gate is not None:
        findings = "".join([f"<li>{_text(each.text)}</li>" for each in gate.findings])
        first, *_ = str(gate).splitlines()
        yield f'<section class="gate {gate.outcome}"><h2>{_text(first)}</h2><ul>{findings}</ul></section>'
    if found := notes(result, comparison):
        yield f"<section><h2>What to know first</h2><ul>{''.join([f'<li>{_text(note)}</li>' for note in found])}</ul></section>"
    yield from _passes(comparison)
    yield from _differences(comparison)
    yield _table(comparison)
    yield from _cases(comparison, paths)
    yield _LEGEND.format(confidence=f"{100 * comparison.confidence:g}")


def _passes(comparison: EvalComparison) -> Iterator[str]:
    """Yield a drawing of each share of passing trials, with all candidates below each other."""
    names = [name for name in comparison.quantities if Quantity.parse(name).is_pass]
    yield "<section><h2>How often each candidate passes</h2>"
    for name in names:
        quantity = Quantity.parse(name)
        found = {
            candidate: comparison.estimates[candidate][name]
            for candidate in comparison.candidates
            if name in comparison.estimates.get(candidate, {})
        }
        rows = [IntervalRow(candidate, each, format_estimate(quantity, each)) for candidate, each in found.items()]
        axis = Axis.around(list(found.values()), lambda value: f"{100 * value:.0f} %", lowest=0.0, highest=1.0)
        yield f"<figure><figcaption>{_text(_meaning(quantity))}</figcaption>{draw_intervals(rows, axis, title=name)}</figure>"
    yield "</section>"


def _meaning(quantity: Quantity) -> str:
    if quantity.k == 1:
        return f"{quantity}: a single try passes"
    which = "at least one" if quantity.sign == "@" else "every one"
    return f"{quantity}: {which} of {quantity.k} tries passes"


def _differences(comparison: EvalComparison) -> Iterator[str]:
    if not comparison.differences:
        return
    yield f"<section><h2>How they differ from {_text(comparison.baseline)}</h2>"
    for candidate in comparison.candidates:
        own = [each for each in comparison.differences if each.candidate == candidate]
        if not own:
            continue
        yield f"<h3>{_text(candidate)}</h3>"
        # Shares on one axis, in points; means on another, relative to the baseline, so that all have one unit.
        shares = [each for each in own if each.is_share]
        means = [each for each in own if each.relative is not None]
        for group, unit in ((shares, "points"), (means, "%")):
            if group:
                yield _difference_drawing(group, unit)
        yield _difference_table(own)
    yield "</section>"


def _difference_drawing(group: Sequence[EvalDifference], unit: str) -> str:
    rows, estimates = list[IntervalRow](), []
    for each in group:
        found = each.estimate if each.is_share or each.relative is None else each.relative
        estimates.append(found)
        texts = [f"{100 * value:+.1f}" for value in (found.value, found.low, found.high)]
        text = f"{texts[0]} ({texts[1]} to {texts[2]}) {unit}"
        rows.append(IntervalRow(str(each.quantity), found, text, each.verdict))
    axis = Axis.around(estimates, lambda value: f"{100 * value:+.0f}" if value else "0", line=0.0)
    caption = "Change of shares, in points" if unit == "points" else "Change of means, in % of the baseline"
    return f"<figure><figcaption>{caption}</figcaption>{draw_intervals(rows, axis, title=caption)}</figure>"


def _difference_table(differences: Sequence[EvalDifference]) -> str:
    head = ["", "difference", "verdict", "p", "p (Holm)", "80 % power from", "would settle it"]
    rows = list[Sequence[str]]()
    for each in differences:
        found = each.estimate
        ways = [f"{each.more_repeats:,} more repeats"] if each.more_repeats is not None else []
        ways += [f"{each.more_cases:,} more cases"] if each.more_cases is not None else []
        rows.append(
            [
                _text(str(each.quantity)),
                _text(f"{each.format(found.value)} ({each.format(found.low)} to {each.format(found.high)})"),
                f'<span class="badge {each.verdict}">{describe_verdict(each)}</span>',
                format_p(each.p).replace("<", "&lt;"),
                format_p(each.corrected_p).replace("<", "&lt;"),
                _text(each.format(each.detectable).lstrip("+")),
                " or ".join(ways),
            ]
        )
    return _rows(head, rows)


def _table(comparison: EvalComparison) -> str:
    rows = list[Sequence[str]]()
    for name in comparison.quantities:
        quantity, cells = Quantity.parse(name), [_text(name)]
        for candidate in comparison.candidates:
            found = comparison.estimates.get(candidate, {}).get(name)
            text = "" if found is None else format_estimate(quantity, found, is_share=is_share(quantity, found))
            cells.append(_text(text))
        rows.append(cells)
    table = _rows(["", *map(_text, comparison.candidates)], rows)
    return f"<section><h2>Side by side</h2>{table}</section>"


def _rows(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join([f"<th>{cell}</th>" for cell in head])
    lines = "".join([f"<tr>{''.join([f'<td>{cell}</td>' for cell in row])}</tr>" for row in rows])
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


# --- cases ------------------------------------------------------------------------------------------------------------


def _ordered(cases: Sequence[CaseDifference]) -> list[CaseDifference]:
    """Return the cases with the largest differences first, losses before wins of the same size."""
    return sorted(cases, key=lambda each: (-abs(each.difference), each.difference > 0))


def _cases(comparison: EvalComparison, paths: CasePaths) -> Iterator[str]:
    if not comparison.cases:
        return
    ordered = _ordered(comparison.cases)
    differ = sum(each.difference != 0 for each in ordered)
    yield f"<section><h2>Cases</h2><p>{differ:,} of {len(ordered):,} comparisons of cases differ, the largest differences first. "
    yield f"A dot is a repeat: full if it passes. The upper row is {_text(comparison.baseline)}.</p>"
    for each in ordered[:_MOST_CASES]:
        yield _case(each, comparison, paths.paths.get((each.candidate, each.case)))
    if len(ordered) > _MOST_CASES:
        yield f"<p>{len(ordered) - _MOST_CASES:,} more cases are in the JSON report.</p>"
    yield "</section>"


def _case(each: CaseDifference, comparison: EvalComparison, paths: TwoPaths | None) -> str:
    kind = "better" if each.difference > 0 else "worse" if each.difference < 0 else "equal"
    change = f"{100 * each.difference:+.0f} points" if each.difference else "no difference"
    dots = f'<span class="dots">{_dots(each.baseline_trials)}<br>{_dots(each.trials)}</span>'
    summary = (
        f'{dots}<span class="name">{_text(each.case)}</span><span class="of">{_text(each.candidate)}</span>'
        f'<span class="badge {kind}">{change}</span>'
    )
    parting = ""
    if paths is not None and paths.parting is not None:
        found = paths.parting
        place = f", at <code>{_text(found.where)}</code>" if found.where else ""
        parting = f'<p class="parting">They part in <b>step {found.step}</b>{place}.</p>'
    elif paths is not None:
        parting = '<p class="parting">Both decide the same in every step.</p>'
    columns = "".join(
        [
            _execution(name, trial, steps, paths)
            for name, trial, steps in zip(
                (comparison.baseline, each.candidate),
                each.shown,
                (paths.first, paths.second) if paths is not None else ((), ()),
                strict=True,
            )
        ]
    )
    return f'<details><summary>{summary}</summary>{parting}<div class="two">{columns}</div></details>'


def _dots(trials: Sequence[Trial]) -> str:
    marks = [f'<i class="{"full" if trial.passed else "void"}"></i>' for trial in trials]
    passed = sum(trial.passed for trial in trials)
    return f'<span role="img" aria-label="{passed} of {len(trials)} pass">{"".join(marks)}</span>'


def _execution(name: str, trial: Trial, steps: Sequence[str], paths: TwoPaths | None) -> str:
    verdict = '<span class="badge better">passes</span>' if trial.passed else '<span class="badge worse">fails</span>'
    parts = [f"<h4>{_text(name)} {verdict}</h4>"]
    if not trial.passed:
        parts.append(f"<p>{_text(describe_failure(trial))}</p>")
    part = paths.parting.step if paths is not None and paths.parting is not None else 0
    items = [
        f'<li class="{"here" if number == part else ""}">{_text(_cut(text))}</li>'
        for number, text in enumerate(steps[:_MOST_STEPS], 1)
    ]
    if part > len(steps):
        items.append('<li class="here">has ended</li>')
    parts.append(f"<ol>{''.join(items)}</ol>" if items else "")
    scores = ", ".join([f"{score.name} {score.value:g}" for score in trial.scores])
    worlds = ", ".join([f"{world} answered {count}" for world, count in trial.answered.items()])
    facts = [
        fact
        for fact in (scores, worlds, f"{trial.steps} steps", "" if trial.cost is None else format_cost(trial.cost))
        if fact
    ]
    identity = f"<code>{_text(trial.execution_id)}</code> " if trial.execution_id else ""
    parts.append(f"<p class='facts'>{identity}{_text(' · '.join(facts))}</p>")
    return f'<div class="execution">{"".join(parts)}</div>'


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}… ({len(text):,} characters)"


def _text(text: str) -> str:
    return escape(escape_invisible(text))


_LEGEND: Final = """\
<footer><h2>How to read this</h2><ul>
<li>A bar is the interval in which the truth lies with a confidence of {confidence} %: of many such evals, that share of bars contains it.
Two numbers whose bars overlap may still differ; the drawings of differences answer that, since they compare case by case.</li>
<li>A difference whose bar crosses the line at 0 <i>cannot be told</i>: the candidate may be better or worse.</li>
<li>Cases are what is counted. Repeats of a case tell how reliably it passes, and resemble each other.</li>
<li>p is how often candidates that are equally good would differ this much by chance; p (Holm) allows for the number of comparisons.</li>
</ul></footer>"""

_STYLE: Final = """\
:root { color-scheme: light dark; --text: #1c2430; --faint: #5d6b7e; --grid: #e2e7ee; --page: #fff; --soft: #f5f7fa;
  --accent: #3465c0; --good: #1a7f4b; --bad: #c03434; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e8ef; --faint: #94a1b3; --grid: #2b3442; --page: #12161d;
  --soft: #1a202a; --accent: #7ba4f0; --good: #4cc38a; --bad: #f07f7f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1000px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0; } header p { color: var(--faint); margin: 4px 0 0; }
h2 { font-size: 18px; margin: 0 0 10px; } h3 { font-size: 15px; margin: 18px 0 6px; } h4 { margin: 0 0 6px; font-size: 14px; }
section { margin-top: 30px; } section ul, footer ul { margin: 0; padding-left: 20px; }
.gate { border-left: 5px solid var(--faint); background: var(--soft); padding: 12px 16px; border-radius: 4px; }
.gate.fails { border-color: var(--bad); } .gate.passes { border-color: var(--good); }
figure { margin: 0 0 14px; overflow-x: auto; } figcaption { color: var(--faint); font-size: 13px; margin-bottom: 4px; }
figure svg { max-width: 100%; min-width: 640px; height: auto; display: block; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--faint); font-weight: 500; }
.badge { font-size: 12px; border-radius: 9px; padding: 1px 8px; background: var(--soft); color: var(--faint); white-space: nowrap; }
.badge.better { color: var(--good); } .badge.worse { color: var(--bad); }
details { border-bottom: 1px solid var(--grid); } summary { display: flex; gap: 14px; align-items: center; padding: 7px 0; cursor: pointer; }
summary .name { flex: 1; overflow-wrap: anywhere; } summary .of { color: var(--faint); font-size: 13px; }
.dots { line-height: 11px; min-width: 46px; } .dots i { display: inline-block; width: 8px; height: 8px; border-radius: 50%; margin-right: 3px;
  border: 1.5px solid var(--accent); } .dots i.full { background: var(--accent); }
.two { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; padding: 4px 0 16px; } @media (max-width: 700px) { .two { grid-template-columns: 1fr; } }
.execution { background: var(--soft); border-radius: 6px; padding: 12px 14px; min-width: 0; overflow-wrap: anywhere; font-size: 13px; }
.execution ol { margin: 6px 0; padding-left: 22px; } .execution li { padding: 2px 5px; white-space: pre-wrap; }
.execution li.here { background: color-mix(in srgb, var(--bad) 14%, transparent); border-radius: 3px; }
.facts, .parting { color: var(--faint); font-size: 13px; margin: 6px 0 0; } .parting { margin: 0 0 8px; }
code { font-size: 12px; } footer { margin-top: 40px; color: var(--faint); font-size: 13px; } footer h2 { font-size: 15px; }
"""


@frozen(eq=False, repr=False, kw_only=True)
class Parting(Value):
    """Where two executions of one case part.

    Attributes:
        step: the 1-based number of the step whose decisions differ.
        first: what the first execution decides in it, in words.
        second: what the second execution decides in it.
        where: the part that differs, such as `calls[0].arguments.amount`; empty where one of them has ended.
    """

    step: int
    first: str
    second: str
    where: str = ""

    def __str__(self) -> str:
        place = f" ({self.where})" if self.where else ""
        return f"step {self.step}{place}: {self.first} | {self.second}"


@frozen(eq=False, repr=False, kw_only=True)
class TwoPaths(Value):
    """What two executions of one case decide, step by step.

    Attributes:
        first: what the first execution decides in each step, in words.
        second: what the second execution decides in each step.
        parting: the first step that differs; None if none does.
    """

    first: tuple[str, ...] = field(converter=tuple[str, ...])
    second: tuple[str, ...] = field(converter=tuple[str, ...])
    parting: Parting | None = None


async def two_paths(journal: CanJournal, first: str, second: str) -> TwoPaths:
    """Read what two executions decide, and where they part; arguments and errors as of `first_parting`."""
    states = [await state_at(journal, first), await state_at(journal, second)]
    words = [[_words(step) for step in _steps(state)] for state in states]
    return TwoPaths(first=words[0], second=words[1], parting=parting_of(*states))


async def first_parting(journal: CanJournal, first: str, second: str) -> Parting | None:
    """Find the first step in which two executions decide differently: other calls, other arguments, or another answer.

    What tools return and what requests look like is not compared: it differs wherever the executions have parted, or has not mattered.

    Args:
        journal: the journal of both.
        first: the id of the one execution.
        second: the id of the other.

    Returns:
        Where they part; None if all their decisions are equal.

    Raises:
        UnknownExecution: one of them is not in the journal.
        JournalCorrupt: records are damaged.
    """
    return parting_of(await state_at(journal, first), await state_at(journal, second))


def parting_of(first: AgentState, second: AgentState) -> Parting | None:
    """Find the first step in which the executions of two states decide differently; see `first_parting`."""
    steps = [_steps(state) for state in (first, second)]
    for number in range(1, max(map(len, steps)) + 1):
        one, two = (each[number - 1] if number <= len(each) else None for each in steps)
        if one is None or two is None:
            return Parting(step=number, first=_words(one), second=_words(two))
        if found := _difference(one, two):
            return Parting(step=number, first=_words(one), second=_words(two), where=found.path)
    return None


def _steps(state: AgentState) -> Sequence[AgentStep]:
    return state.execution.steps if state.execution is not None else ()


def _calls(step: AgentStep) -> Sequence[ToolCall]:
    exchanges = step.message.exchanges if step.message is not None else ()
    calls = [exchange.call for exchange in exchanges]
    return calls or [*[each.call for each in step.executions], *[waiting.call for waiting in step.pending]]


def _text_of(step: AgentStep) -> str:
    return step.message.text if step.message is not None else ""


def _difference(one: AgentStep, two: AgentStep) -> Difference | None:
    calls = [_calls(step) for step in (one, two)]
    if len(calls[0]) == len(calls[1]) and all(map(is_same_call, *calls)):
        # Words beside calls decide nothing; the answer is what a step without calls decides.
        differ = not calls[0] and (_text_of(one) != _text_of(two) or bool(one.errors) != bool(two.errors))
        return Difference("answer", _text_of(one), _text_of(two)) if differ else None
    one_plain, two_plain = ([_plain(call) for call in each] for each in calls)
    return next(iter(first_differences(one_plain, two_plain, "calls")), Difference("calls", NOTHING, NOTHING))


def _plain(call: ToolCall) -> Mapping[str, Any]:
    try:
        return {"name": call.name, "arguments": call.arguments}
    except ValueError:
        return {"name": call.name, "arguments": call.arguments_json}


def _words(step: AgentStep | None) -> str:
    if step is None:
        return "has ended"
    if calls := _calls(step):
        return ", ".join([f"calls {call.name}({call.arguments_json})" for call in calls])
    if step.errors:
        return f"fails: {step.errors[0].message}"
    return f"answers: {_text_of(step)}"
