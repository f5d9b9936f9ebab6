"""Scorers: what a trial was worth. Each looks at one thing, and is silent about cases that expect nothing of it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from attrs import field, frozen

from agentloop.errors.kinds import ContractViolation, InvalidParameter
from agentloop.evals.results import MEASURES, Score
from agentloop.evals.trials import TrialRun
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import JsonValue, extract_json, format_json, freeze_object, thaw
from agentloop.values.tool_calls import ToolStatus
from agentloop.values.value import Value

ScoreLike: TypeAlias = Score | bool | float | None
"""A score, a verdict, a number, or nothing to say."""

_SHOWN = 200


class CanScore(ABC):
    """Scores trials. It keeps nothing between them, and says the same of the same trial: a trial that was interrupted is scored again."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its scores; unique in a suite."""

    @abstractmethod
    def score(self, run: TrialRun) -> ScoreLike | Awaitable[ScoreLike]:
        """Return the score of a trial, or an awaitable of it; None where the case expects nothing of it.

        What it raises makes the trial one with an error.
        """


ScorerLike: TypeAlias = CanScore | Callable[[TrialRun], ScoreLike | Awaitable[ScoreLike]]
"""A scorer, or a plain or async function of a trial, whose name is that of the scorer."""


def as_scorers(given: Iterable[ScorerLike]) -> tuple[CanScore, ...]:
    """Return scorers as a suite has them.

    Raises:
        InvalidParameter: one is no scorer, two have the same name, or a name is that of what is measured of every trial.
    """
    made = [each if isinstance(each, CanScore) else _as_scorer(each) for each in given]
    names = [scorer.name for scorer in made]
    for name in names:
        if names.count(name) > 1:
            raise InvalidParameter(
                f"two scorers are named {name!r}; give one another name, as in AnswerContains(name='…')"
            )
        if name in MEASURES:
            raise InvalidParameter(
                f"{name!r} is measured of every trial; name the scorer otherwise, such as {name + ' limit'!r}"
            )
    return tuple(made)


def _as_scorer(given: object) -> CanScore:
    if not callable(given):
        raise InvalidParameter(f"a scorer is a CanScore or a function of a TrialRun, not {given!r:.100}")
    return ScoreBy(given)


async def score_trial(scorers: Iterable[CanScore], run: TrialRun) -> tuple[Score, ...]:
    """Return what scorers say about a trial.

    Raises:
        ContractViolation: one says something that is no score.
        Exception: whatever one raises.
    """
    scores = []
    for scorer in scorers:
        given = scorer.score(run)
        said: object = await given if isawaitable(given) else given
        if said is not None:
            scores.append(_as_score(scorer.name, said))
    return tuple(scores)


def _as_score(name: str, said: object) -> Score:
    if isinstance(said, Score):
        return said
    if isinstance(said, bool):
        return Score(name, float(said), passed=said)
    if isinstance(said, int | float):
        return Score(name, float(said))
    raise ContractViolation(f"the scorer {name!r} said {said!r:.100}; it says a Score, a bool, a number, or None")


def verdict(name: str, problems: Iterable[str]) -> Score:
    """Return a score that passes if there is no problem, with the problems as its reason."""
    found = list(problems)
    return Score(name, float(not found), passed=not found, reason="; ".join(found))


@frozen
class ScoreBy(CanScore):
    """Scores by a function of the trial.

    Attributes:
        function: a plain or async function that returns a `Score`, a verdict, a number, or None.
        name: the name of the score; by default that of the function.
    """

    function: Callable[[TrialRun], ScoreLike | Awaitable[ScoreLike]]
    name: str = field()

    @name.default
    def _named(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def score(self, run: TrialRun) -> ScoreLike | Awaitable[ScoreLike]:
        """Return what the function says."""
        return self.function(run)


# --- answers ------------------------------------------------------------------------------------------------------------


class _AnswerScorer(CanScore):
    """Compares the answer with what the case expects under the name of the score.

    Attributes:
        name: the name of the score, and of the expectation.
    """

    name: str

    def score(self, run: TrialRun) -> Score | None:
        """Return the verdict; None for a case without the expectation."""
        expected = run.case.expected.get(self.name)
        return None if expected is None else verdict(self.name, self.problems(expected, run.answer))

    @abstractmethod
    def problems(self, expected: JsonValue, answer: str) -> Iterable[str]:
        """Return what is wrong with an answer; nothing if it passes."""


@frozen
class ExactAnswer(_AnswerScorer):
    """Passes if the answer is the text `expected["answer"]` of the case, but for space at its ends.

    Attributes:
        ignore_case: whether capital letters are the same as small ones.
        name: the name of the score, and of the expectation.
    """

    ignore_case: bool = False
    name: str = "answer"

    def problems(self, expected: JsonValue, answer: str) -> Iterable[str]:
        """Return the difference, if there is one."""
        wanted, got = _text(expected).strip(), answer.strip()
        is_equal = wanted.casefold() == got.casefold() if self.ignore_case else wanted == got
        return () if is_equal else [f"the answer is {got!r:.200}, not {wanted!r:.200}"]


@frozen
class AnswerContains(_AnswerScorer):
    """Passes if the answer has every text of `expected["contains"]`, a text or a list.

    Attributes:
        ignore_case: whether capital letters are the same as small ones.
        name: the name of the score, and of the expectation.
    """

    ignore_case: bool = True
    name: str = "contains"

    def problems(self, expected: JsonValue, answer: str) -> Iterable[str]:
        """Return the texts that are missing."""
        fold = str.casefold if self.ignore_case else str
        missing = [text for text in _texts(expected) if fold(text) not in fold(answer)]
        return [f"the answer lacks {text!r:.200}" for text in missing]


@frozen
class AnswerMatches(_AnswerScorer):
    """Passes if the regular expressions of `expected["matches"]`, a text or a list, are found in the answer.

    Attributes:
        name: the name of the score, and of the expectation.
    """

    name: str = "matches"

    def problems(self, expected: JsonValue, answer: str) -> Iterable[str]:
        """Return the regular expressions that are not found.

        Raises:
            re.error: an expectation is no regular expression.
        """
        missing = [pattern for pattern in _texts(expected) if re.search(pattern, answer) is None]
        return [f"the answer does not match {pattern!r:.200}" for pattern in missing]


@frozen
class AnswerFits(CanScore):
    """Passes if the answer is JSON that satisfies the JSON Schema `expected["schema"]`, or one for all cases.

    Attributes:
        schema: the schema for cases that have none of their own; None where these are not scored.
        name: the name of the score, and of the expectation.
    """

    schema: Mapping[str, Any] | None = None
    name: str = "schema"

    def score(self, run: TrialRun) -> Score | None:
        """Return the verdict; None for a case without a schema.

        Raises:
            ToolDefinitionError: the schema is none.
        """
        schema = run.case.expected.get(self.name, self.schema)
        if schema is None:
            return None
        try:
            document = extract_json(run.answer)
        except ValueError as error:
            return verdict(self.name, [f"the answer is not JSON: {error}"])
        problems = SchemaValidator(thaw(freeze_object(schema))).problems(document)
        return verdict(self.name, [f"{path}: {problem}" for path, problem in problems])


@frozen
class AnswerFields(CanScore):
    """Scores the share of the fields of `expected["fields"]` that the answer, a JSON object, has; passes if it has all.

    Attributes:
        name: the name of the score, and of the expectation.
    """

    name: str = "fields"

    def score(self, run: TrialRun) -> Score | None:
        """Return the share and the verdict; None for a case without the expectation."""
        expected = thaw(run.case.expected.get(self.name))
        if not expected:
            return None
        try:
            document = extract_json(run.answer)
        except ValueError as error:
            return Score(self.name, 0.0, passed=False, reason=f"the answer is not JSON: {error}")
        got = document if isinstance(document, dict) else {}
        wrong = [
            f"{key} is {_shown(got.get(key))}, not {_shown(want)}"
            for key, want in expected.items()
            if got.get(key) != want
        ]
        return Score(self.name, 1 - len(wrong) / len(expected), passed=not wrong, reason="; ".join(wrong))


# --- calls --------------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class CallLike(Value):
    """A pattern of calls.

    Attributes:
        name: the name of the tool, or a pattern such as `refund_*`.
        arguments: what the arguments have to hold: values, or functions of a value that say whether it fits. Others may be there.
        exactly: whether no other arguments may be there.
    """

    name: str
    arguments: Mapping[str, Any] = field(factory=dict)
    exactly: bool = False

    def fits(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Return whether a call fits the pattern."""
        if not fnmatchcase(name, self.name) or (self.exactly and arguments.keys() != self.arguments.keys()):
            return False
        return all(
            key in arguments and (want(arguments[key]) if callable(want) else thaw(want) == arguments[key])
            for key, want in self.arguments.items()
        )

    @classmethod
    def of(cls, given: object) -> CallLike:
        """Return a pattern from itself, from a name, or from the JSON of a case: `{"name": …, "arguments": {…}, "exactly": true}`.

        Raises:
            InvalidParameter: it is something else.
        """
        match thaw(given) if isinstance(given, Mapping) else given:  # type: ignore[arg-type]  # JSON of a case
            case CallLike() as pattern:
                return pattern
            case str() as name:
                return cls(name)
            case {"name": str() as name, **others} if others.keys() <= {"arguments", "exactly"}:
                arguments: Any = others.get("arguments", {})
                return cls(name, arguments, bool(others.get("exactly", False)))
        raise InvalidParameter(
            f"a pattern of calls is a name, CallLike(…), or {{'name': …, 'arguments': {{…}}}}, not {given!r:.200}"
        )

    def __str__(self) -> str:
        listed = ", ".join(f"{key}={_shown(value)}" for key, value in self.arguments.items())
        return f"{self.name}({listed}{'' if self.exactly else ', …' if listed else '…'})"


CallPattern: TypeAlias = CallLike | str | Mapping[str, Any]
_CALL_KEYS: Final = ("must", "must_not", "in_order", "counts")


@frozen
class ExpectedCalls(CanScore):
    """Passes if the candidate called what it had to, and nothing that it must not.

    The patterns are those of all cases, together with those of `expected["calls"]`: an object with the same names as the attributes,
    or a list, which is `must`.

    Attributes:
        must: patterns; each needs a call of its own.
        must_not: patterns that no call may fit.
        in_order: whether the calls of `must` have to come in its order; others may come between them.
        counts: for patterns of names: how many calls fit, exactly.
        succeeded: whether only calls that succeeded count for `must` and `counts`.
        name: the name of the score, and of the expectation.
    """

    must: tuple[CallPattern, ...] = field(default=(), converter=tuple[CallPattern, ...])
    must_not: tuple[CallPattern, ...] = field(default=(), converter=tuple[CallPattern, ...])
    in_order: bool = False
    counts: Mapping[str, int] = field(factory=dict)
    succeeded: bool = False
    name: str = field(default="calls", kw_only=True)

    def score(self, run: TrialRun) -> Score | None:
        """Return the verdict; None for a case without expectations about calls.

        Raises:
            InvalidParameter: the expectation of the case is no pattern.
        """
        own = thaw(run.case.expected.get(self.name, {}))
        own = {"must": own} if isinstance(own, list) else own
        if not isinstance(own, dict) or not own.keys() <= {*_CALL_KEYS}:
            raise InvalidParameter(
                f"expected[{self.name!r}] has {', '.join(_CALL_KEYS)}, or is a list of calls; not {own!r:.200}"
            )
        must = [CallLike.of(each) for each in (*self.must, *own.get("must", ()))]
        must_not = [CallLike.of(each) for each in (*self.must_not, *own.get("must_not", ()))]
        counts = {**self.counts, **own.get("counts", {})}
        if not (must or must_not or counts or self.name in run.case.expected):
            return None
        made = [(call.name, thaw(call.arguments)) for call in run.calls]
        counted = [
            (call.name, thaw(call.arguments))
            for call in run.calls
            if not self.succeeded or call.status is ToolStatus.SUCCEEDED
        ]
        problems = [*_missing(must, counted, in_order=own.get("in_order", self.in_order))]
        problems += [f"called {_call_text(*call)}" for call in made if any(each.fits(*call) for each in must_not)]
        for pattern, count in counts.items():
            found = sum(fnmatchcase(name, pattern) for name, _ in counted)
            problems += [f"{found} calls of {pattern}, not {count}"] if found != count else []
        return verdict(self.name, problems)


_Call: TypeAlias = tuple[str, Any]


def _missing(patterns: Sequence[CallLike], calls: Sequence[_Call], *, in_order: bool) -> Iterator[str]:
    """Yield the patterns for which there is no call of their own."""
    if in_order:
        rest = iter(calls)
        for number, pattern in enumerate(patterns):
            if not any(pattern.fits(*call) for call in rest):
                yield f"no call of {pattern}" + (f" after that of {patterns[number - 1]}" if number else "")
                return
        return
    # A pattern may fit the only call of a stricter one: calls are assigned along augmenting paths.
    owner: dict[int, int] = {}

    def assign(pattern: int, seen: set[int]) -> bool:
        for place, call in enumerate(calls):
            if place in seen or not patterns[pattern].fits(*call):
                continue
            seen.add(place)
            if place not in owner or assign(owner[place], seen):
                owner[place] = pattern
                return True
        return False

    for number, pattern in enumerate(patterns):
        if not assign(number, set()):
            yield f"no call of {pattern}"


@frozen
class ExpectedEffects(CanScore):
    """Passes if the calls that changed the world of the trial are those of `expected["effects"]`, in any order, and no others.

    Only calls with effects that succeeded count; sub-agents' are among them.

    Attributes:
        name: the name of the score, and of the expectation.
    """

    name: str = "effects"

    def score(self, run: TrialRun) -> Score | None:
        """Return the verdict; None for a case without the expectation.

        Raises:
            InvalidParameter: the expectation is no list of patterns.
        """
        if self.name not in run.case.expected:
            return None
        patterns = [CallLike.of(each) for each in thaw(run.case.expected[self.name])]
        effects = [(entry.name, thaw(entry.arguments)) for entry in run.effects]
        problems = [*_missing(patterns, effects, in_order=False)]
        # As many as expected, and each expected one among them: then there is no other.
        if not problems and len(effects) > len(patterns):
            strange = [each for each in effects if not any(pattern.fits(*each) for pattern in patterns)]
            problems = [f"also changed the world by {_call_text(*each)}" for each in strange or effects[-1:]]
        return verdict(self.name, problems)


# --- what it took -------------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class WithinLimits(CanScore):
    """Passes if the trial took no more than this.

    Attributes:
        cost: US dollars; a trial whose cost is not known does not pass.
        tokens: tokens; one whose tokens are not known does not pass.
        steps: steps.
        seconds: seconds.
        calls: calls.
        name: the name of the score.
    """

    cost: float | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: float | None = None
    calls: int | None = None
    name: str = "limits"

    def score(self, run: TrialRun) -> Score:
        """Return the verdict."""
        took = {
            "cost": (self.cost, run.account.cost),
            "tokens": (self.tokens, run.tokens),
            "steps": (self.steps, len(run.steps)),
            "seconds": (self.seconds, run.seconds),
            "calls": (self.calls, len(run.calls)),
        }
        return verdict(
            self.name,
            [
                f"the {name} are not known" if used is None else f"{used:g} {name}, more than {limit:g}"
                for name, (limit, used) in took.items()
                if limit is not None and (used is None or used > limit)
            ],
        )


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else format_json(thaw(value)).decode()


def _texts(expected: JsonValue) -> list[str]:
    return [expected] if isinstance(expected, str) else [_text(each) for each in thaw(expected)]


def _shown(value: object) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else json.dumps(value, default=repr)[:_SHOWN]


def _call_text(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_shown(value)}' for key, value in arguments.items())})"
