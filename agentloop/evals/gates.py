"""Gates: conditions on results, such as `pass^3 < 0.9 or cost > +10 %`, under which a change is to be refused.

A comparison is true or false only where its interval says so. In between, it is open: nothing can be said with so few repeats.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from math import isfinite
from typing import Final, Literal, TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.comparison import EvalDifference, Side, difference, measured_spread, more_needed, pairs_of
from agentloop.evals.quantities import Quantity, format_change
from agentloop.evals.results import EvalResult
from agentloop.evals.statistics import CONFIDENCE, Estimate
from agentloop.values.value import Value

Operator: TypeAlias = Literal["<", ">", "<=", ">="]
Outcome: TypeAlias = Literal["passes", "fails", "open"]
_OUTCOMES: Final[dict[bool | None, Outcome]] = {True: "fails", False: "passes", None: "open"}


@frozen(eq=False, repr=False, kw_only=True)
class GateFinding(Value):
    """What one comparison of a gate came to for one candidate.

    Attributes:
        candidate: the name of the candidate.
        condition: the comparison, such as `cost > +10 %`.
        is_true: whether the interval says that it holds; None where the interval says nothing.
        text: a sentence with the estimate and its interval.
    """

    candidate: str
    condition: str
    is_true: bool | None
    text: str


@frozen(eq=False, repr=False, kw_only=True)
class GateReport(Value):
    """What a gate says about a result.

    Attributes:
        condition: the condition of the gate.
        outcome: `fails` if the condition certainly holds for some candidate, `passes` if it certainly holds for none, `open` otherwise.
        findings: what each comparison came to, by candidate.
    """

    condition: str
    outcome: Outcome
    findings: tuple[GateFinding, ...] = field(converter=tuple[GateFinding, ...])

    def __str__(self) -> str:
        heads = {
            "passes": f"The gate passes: nothing of {self.condition!r} holds.",
            "fails": f"The gate fails: {self.condition!r} holds.",
            "open": f"The gate is open: there are not enough repeats to decide {self.condition!r}.",
        }
        return "\n".join([heads[self.outcome], *[f"  {finding.text}" for finding in self.findings]])


# --- the expression ---------------------------------------------------------------------------------------------------


@frozen
class _Evidence:
    """What the comparisons of a gate look at: a candidate, what it is compared with, and the confidence of each interval."""

    candidate: Side
    baseline: Side | None
    confidence: float
    note: Callable[[GateFinding], None]


class _Condition:
    """A part of an expression."""

    @abstractmethod
    def holds(self, evidence: _Evidence) -> bool | None:
        """Tell whether the part holds; None where the intervals say nothing."""

    @abstractmethod
    def comparisons(self) -> Iterator[_Comparison]:
        """Yield the comparisons in it."""


@frozen
class _Not(_Condition):
    part: _Condition

    def holds(self, evidence: _Evidence) -> bool | None:
        found = self.part.holds(evidence)
        return None if found is None else not found

    def comparisons(self) -> Iterator[_Comparison]:
        yield from self.part.comparisons()


@frozen
class _Joined(_Condition):
    parts: tuple[_Condition, ...]
    decisive: bool
    """What decides alone: True for `or`, False for `and`."""

    def holds(self, evidence: _Evidence) -> bool | None:
        # All parts are looked at, so that the report has all of them.
        found = [part.holds(evidence) for part in self.parts]
        if self.decisive in found:
            return self.decisive
        return None if None in found else not self.decisive

    def comparisons(self) -> Iterator[_Comparison]:
        for part in self.parts:
            yield from part.comparisons()


@frozen
class _Comparison(_Condition):
    """A comparison of a quantity with a number.

    Attributes:
        text: how it was written.
        quantity: what is compared.
        operator: how.
        number: with what: a value; or a change, if `change` says so.
        change: None for a value; otherwise whether the number is a relative change, points of a share, or a difference.
    """

    text: str
    quantity: Quantity
    operator: Operator
    number: float
    change: Literal["relative", "points", "difference"] | None

    def comparisons(self) -> Iterator[_Comparison]:
        yield self

    def holds(self, evidence: _Evidence) -> bool | None:
        estimate, says, more = self._value(evidence) if self.change is None else self._change(evidence)
        found = self._compare(estimate)
        confidence = f"{100 * estimate.confidence:.4g} % interval"
        text = (
            f"{evidence.candidate.name}: {self.quantity} is {says(estimate.value)} "
            f"({says(estimate.low)} to {says(estimate.high)}, {confidence})"
        )
        if self.change is not None and evidence.baseline is not None:
            text += f" against {evidence.baseline.name}"
        verdicts = {True: f"so {self.text} holds", False: f"so {self.text} does not hold"}
        text += f": {verdicts[found] if found is not None else f'not enough repeats for {self.text}{more}'}"
        evidence.note(GateFinding(candidate=evidence.candidate.name, condition=self.text, is_true=found, text=text))
        return found

    def _compare(self, estimate: Estimate) -> bool | None:
        """Return what holds for all values of the interval; None if it holds for some only."""
        tests: dict[str, Callable[[float], bool]] = {
            "<": lambda value: value < self.number,
            "<=": lambda value: value <= self.number,
            ">": lambda value: value > self.number,
            ">=": lambda value: value >= self.number,
        }
        ends = {tests[self.operator](end) for end in (estimate.low, estimate.high)}
        return ends.pop() if len(ends) == 1 else None

    def _value(self, evidence: _Evidence) -> tuple[Estimate, Callable[[float], str], str]:
        side = evidence.candidate
        numbers = self.quantity.numbers(side.result, side.candidate)
        is_share = self.quantity.is_share(numbers)
        estimate = self.quantity.estimate(side.result, side.candidate, confidence=evidence.confidence)
        more = ""
        if len(numbers) > 1:
            measured = measured_spread(list(numbers.values()), is_share=False)
            more = _more(*more_needed(measured, abs(estimate.value - self.number), evidence.confidence))
        return estimate, lambda value: self.quantity.format(value, is_share=is_share), more

    def _change(self, evidence: _Evidence) -> tuple[Estimate, Callable[[float], str], str]:
        if evidence.baseline is None:
            raise InvalidParameter(
                f"{self.text!r} is about a change, and there is nothing to compare with; name a baseline, or run a second candidate"
            )
        found = difference(
            evidence.baseline, evidence.candidate, self.quantity, confidence=evidence.confidence, settle=self.number
        )
        more = _more(found.more_repeats, found.more_cases)
        if self.change == "points" and not found.is_share:
            raise InvalidParameter(f"{self.text!r} is about a mean, whose change is in %, such as +10 %, not in points")
        if self.change != "relative":
            return found.estimate, found.format, more
        return _relative(found, self.text), format_change, more


def _relative(found: EvalDifference, text: str) -> Estimate:
    """Return a relative change, of a share relative to the share of the baseline."""
    if found.relative is not None:
        return found.relative
    if found.is_share:
        raise InvalidParameter(f"{text!r} is about a share; write its change in points, such as -3 points")
    if found.estimate.low == found.estimate.high == 0:
        return evolve(found.estimate, value=0.0)
    raise InvalidParameter(f"{text!r} is a change relative to a baseline of 0; compare with a value instead")


def _more(repeats: int | None, cases: int | None) -> str:
    ways = [f"{repeats:,} more repeats per case"] if repeats is not None else []
    ways += [f"{cases:,} more cases"] if cases is not None else []
    return f"; {' or '.join(ways)} would settle it if the numbers stay as they are" if ways else ""


# --- the gate ---------------------------------------------------------------------------------------------------------


@frozen(repr=False)
class Gate:
    """A condition under which a change is to be refused.

    An expression has comparisons, `and`, `or`, `not` and parentheses. A comparison is a quantity, one of `<`, `<=`, `>`, `>=`, and a
    number. The quantity is `pass@K`, `pass^K`, `passed` (as `pass@1`), `cost` (US dollars), `tokens`, `steps`, `seconds`, or the name of a
    scorer, in quotes if it has other characters than letters, digits, `_` and `-`. A number without a sign is a value: `0.9`, `90 %`, `$0.02`.
    With a sign it is a change against the baseline: `+10 %` relative to it, `-3 points` of a share, `+200` of the unit itself.

    Attributes:
        text: the expression.

    Raises:
        InvalidParameter: the expression cannot be read; the message shows where.
    """

    text: str
    _root: _Condition = field(init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_root", _Parser(self.text).parse())

    def __repr__(self) -> str:
        return f"Gate({self.text!r})"

    def check(
        self, result: EvalResult, baseline: EvalResult | str | None = None, *, confidence: float = CONFIDENCE
    ) -> GateReport:
        """Judge the candidates of a result.

        Args:
            result: the result.
            baseline: what changes are compared with: another result, or the name of a candidate; by default the first candidate. A
                candidate that is the baseline is not judged itself, unless it is the only one.
            confidence: of the whole gate. Each of its N comparisons, counted over all candidates, gets an interval that is wrong in an
                N-th of the cases (Bonferroni), so that the gate is wrong about any in at most 5 %.

        Raises:
            InvalidParameter: a candidate has no number of a kind that the gate names, or a change has nothing to be compared with.
        """
        pairs = list[tuple[Side | None, Side]](pairs_of(result, baseline))
        if not pairs:
            pairs = [(None, Side(result=result, candidate=name, name=name)) for name in result.candidates]
        count = len(list(self._root.comparisons())) * len(pairs)
        findings = list[GateFinding]()
        found = [
            self._root.holds(_Evidence(side, against, 1 - (1 - confidence) / count, findings.append))
            for against, side in pairs
        ]
        outcome = True if True in found else None if None in found else False
        return GateReport(condition=self.text, outcome=_OUTCOMES[outcome], findings=findings)


# --- the parser -------------------------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<operator><=|>=|<|>)
      | (?P<bracket>[()])
      | (?P<number>[+-]?\s*\$?\s*(?:\d[\d_,]*(?:\.\d+)?|\.\d+)(?:\s*(?:%|points?\b))?)
      | "(?P<double>[^"]+)" | '(?P<single>[^']+)'
      | (?P<word>pass[@^]\d*|[^\W\d][\w\-]*)
    )""",
    re.VERBOSE,
)
_NUMBER: Final = re.compile(r"(?P<sign>[+-]?)\s*(?P<dollar>\$?)\s*(?P<digits>[\d_,.]+)\s*(?P<unit>%|points?)?")
_MOST_DEPTH: Final = 50


@frozen
class _Token:
    kind: str
    text: str
    start: int
    end: int


class _Parser:
    """Reads an expression by recursive descent: `or` binds weaker than `and`, `and` weaker than `not`."""

    def __init__(self, text: str) -> None:
        self._text, self._place, self._depth = text, 0, 0
        self._tokens = list(self._split())

    def parse(self) -> _Condition:
        """Read the whole text.

        Raises:
            InvalidParameter: it is no expression.
        """
        found = self._or()
        if (rest := self._peek()).kind != "end":
            raise self._error(rest, "expected 'and', 'or' or the end")
        return found

    def _split(self) -> Iterator[_Token]:
        place = 0
        while self._text[place:].strip():
            match = _TOKEN.match(self._text, place)
            if match is None:
                start = place + len(self._text[place:]) - len(self._text[place:].lstrip())
                raise self._error(_Token("", self._text[start], start, start + 1), "this cannot be read")
            kind = match.lastgroup or ""
            token = _Token(kind, match[kind], match.start(kind), match.end(kind))
            if kind == "word" and token.text.lower() in {"and", "or", "not"}:
                token = _Token(token.text.lower(), token.text, token.start, token.end)
            yield token
            place = match.end()
        yield _Token("end", "", len(self._text), len(self._text))

    def _peek(self) -> _Token:
        return self._tokens[self._place]

    def _take(self) -> _Token:
        token = self._peek()
        self._place += token.kind != "end"
        return token

    def _or(self) -> _Condition:
        return self._joined("or", self._and, decisive=True)

    def _and(self) -> _Condition:
        return self._joined("and", self._not, decisive=False)

    def _joined(self, word: str, part: Callable[[], _Condition], *, decisive: bool) -> _Condition:
        parts = [part()]
        while self._peek().kind == word:
            self._take()
            parts.append(part())
        return parts[0] if len(parts) == 1 else _Joined(tuple(parts), decisive)

    def _not(self) -> _Condition:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise self._error(self._peek(), "the expression is nested too deeply")
        token = self._peek()
        if token.kind == "not":
            self._take()
            found: _Condition = _Not(self._not())
        elif token.text == "(":
            self._take()
            found = self._or()
            if (closing := self._take()).text != ")":
                raise self._error(closing, "expected ')'")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> _Comparison:
        name = self._take()
        if name.kind not in {"word", "single", "double"}:
            raise self._error(name, "expected a quantity, such as pass^3 or cost")
        try:
            quantity = Quantity.parse(name.text) if name.kind == "word" else Quantity(name.text)
        except InvalidParameter as error:
            raise self._error(name, str(error)) from None
        operator = self._take()
        if operator.kind != "operator":
            raise self._error(operator, f"expected <, <=, > or >= behind {name.text}")
        number = self._take()
        if number.kind != "number":
            raise self._error(number, f"expected a number behind {operator.text}, such as 0.9 or +10 %")
        return self._compared(name, quantity, operator.text, number)

    def _compared(self, name: _Token, quantity: Quantity, operator: str, number: _Token) -> _Comparison:
        match = _NUMBER.fullmatch(number.text.strip())
        try:
            value = float(match["digits"].replace(",", "").replace("_", "")) if match is not None else float("nan")
        except ValueError:
            value = float("nan")
        if match is None or not isfinite(value):
            raise self._error(number, "this is no number")
        sign, unit = match["sign"], match["unit"] or ""
        if unit or match["dollar"]:
            self._check_unit(quantity, number, unit, dollar=match["dollar"])
        change: Literal["relative", "points", "difference"] | None = None
        if sign:
            change = "relative" if unit == "%" else "points" if unit or quantity.is_pass else "difference"
        elif unit.startswith("point"):
            raise self._error(number, "points are a change and need a sign, such as -3 points")
        if unit:
            value /= 100
        self._check_share(quantity, number, value, change)
        text = self._text[name.start : number.end].strip()
        operators: dict[str, Operator] = {"<": "<", ">": ">", "<=": "<=", ">=": ">="}
        return _Comparison(text, quantity, operators[operator], -value if sign == "-" else value, change)

    def _check_unit(self, quantity: Quantity, number: _Token, unit: str, *, dollar: str) -> None:
        if dollar and quantity.name != "cost":
            raise self._error(number, "only a cost has dollars")
        if unit.startswith("point") and quantity.is_better_lower:
            raise self._error(number, f"points are of a share; {quantity} changes by %, such as +10 %")
        if unit == "%" and quantity.is_better_lower and number.text.strip()[0] not in "+-":
            raise self._error(number, f"{quantity} is no share; a change needs a sign, such as +10 %")

    def _check_share(self, quantity: Quantity, number: _Token, value: float, change: str | None) -> None:
        if quantity.is_pass and change == "relative":
            raise self._error(number, f"{quantity} is a share; write its change in points, such as -3 points")
        if quantity.is_pass and value > 1:
            raise self._error(number, f"{quantity} is at most 1, or 100 %")

    def _error(self, token: _Token, problem: str) -> InvalidParameter:
        what = f"{token.text!r}" if token.text else "the end"
        width = max(token.end - token.start, 1)
        marks = f"{' ' * token.start}{'^' * width}"
        return InvalidParameter(f"the gate cannot be read at {what}: {problem}\n  {self._text}\n  {marks}")


def gate_of(gates: Sequence[str]) -> Gate:
    """Return one gate that fails if any of these conditions holds, such as those of several options.

    Raises:
        InvalidParameter: one cannot be read, or there is none.
    """
    if not gates:
        raise InvalidParameter("a gate needs a condition")
    for gate in gates:
        Gate(gate)
    return Gate(gates[0] if len(gates) == 1 else " or ".join([f"({gate})" for gate in gates]))
