"""Tools for planned programs that lose the labels of values, each at another place of its evaluator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, ClassVar
from unittest.mock import patch

from attrs import evolve, frozen

from agentloop.contracts.tool import ToolContext
from agentloop.errors import ProgramFailed
from agentloop.models import RunProgram
from agentloop.models.programs.labeled_program import CallFailed, PlanEnd, PlanFailed, run_plan
from agentloop.models.programs.labeled_values import CLEAN, Array, Leaf, Marks, Node, Part, PlannedCall, Record, plain
from agentloop.models.programs.planned_calls import CallPlanned, PlannedResult
from agentloop.models.programs.program import ProgramLimits, ProgramResult
from agentloop.testing.plan_kit import PlanKit
from agentloop.values.json import thaw
from tests.testing.zoo.zoo import Member

_PROGRAM = "agentloop.models.programs.labeled_program"
_FUNCTIONS = "agentloop.models.programs.labeled_functions"
_CALLS = "agentloop.models.programs.planned_calls"


@frozen
class _Evaluator:
    """Runs programs in this process, with parts of the evaluator replaced."""

    limits: ProgramLimits
    parts: Mapping[str, Any]

    async def run_planned(
        self, source: str, functions: Mapping[str, Sequence[str]], call: CallPlanned
    ) -> tuple[ProgramResult, Marks]:
        """Run a program to its end."""
        results: list[Node | CallFailed] = []
        with self.replaced():
            while True:
                try:
                    ran = run_plan(source, functions, self.limits, results)
                except PlanFailed as failed:
                    raise ProgramFailed(str(failed)) from failed
                if isinstance(ran, PlanEnd):
                    return ProgramResult(ran.printed, ran.value, tuple(ran.notes)), ran.marks
                results += map(_result_of, await call(ran))

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Replace the parts."""
        with ExitStack() as stack:
            for place, part in self.parts.items():
                stack.enter_context(patch(place, part))
            yield


def _result_of(made: PlannedResult) -> Node | CallFailed:
    if made.result.error:
        return CallFailed(made.result.error, made.declared.marks)
    return made.declared.node_of(thaw(made.result.value))


@frozen(kw_only=True)
class ChangedPrograms(RunProgram):
    """Runs programs with an evaluator of which parts are replaced."""

    parts: ClassVar[Mapping[str, Any]] = {}

    def _interpreter(self, context: ToolContext) -> Any:
        del context
        return _Evaluator(self.limits, self.parts)


# --- what is computed -------------------------------------------------------------------------------------------------


def _clean_leaf(run: Any, value: Node, *_: Any) -> Leaf:
    del run
    return Leaf(str(plain(value)))


def _bare(node: Node) -> Node:
    match node:
        case Leaf():
            return Leaf(node.value)
        case Array():
            return Array([_bare(item) for item in node.items])
        case Record():
            return Record({name: _bare(item) for name, item in node.fields.items()})


def _without_marks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose results have no marks."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        return _bare(result) if isinstance(result, Leaf | Array | Record) else evolve(result, marks=CLEAN)

    return call


def _lookup(place: str) -> Any:
    """Return a method of the evaluator."""
    module, owner, name = place.rsplit(".", 2)
    return getattr(getattr(import_module(module), owner), name)


def _same(*marks: Marks) -> Marks:
    return CLEAN.union(*marks)


class ForgetsTexts(ChangedPrograms):
    """Breaks law 61: a text that is formatted has no source."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._Run._formatted": _clean_leaf}


class ForgetsOperators(ChangedPrograms):
    """Breaks law 61: what an operator computes has no source."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_PROGRAM}._Run._binary": _without_marks(_lookup(f"{_PROGRAM}._Run._binary"))
    }


class ForgetsComparisons(ChangedPrograms):
    """Breaks law 61: the truth of a comparison has no source."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_PROGRAM}._Run._compare": _without_marks(_lookup(f"{_PROGRAM}._Run._compare"))
    }


class ForgetsMethods(ChangedPrograms):
    """Breaks law 61: what a method returns has no source."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_FUNCTIONS}.Functions.method": _without_marks(_lookup(f"{_FUNCTIONS}.Functions.method"))
    }


class ForgetsFunctions(ChangedPrograms):
    """Breaks law 61: what a function returns has no source."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_FUNCTIONS}.Functions.call": _without_marks(_lookup(f"{_FUNCTIONS}.Functions.call"))
    }


class ForgetsModules(ChangedPrograms):
    """Breaks law 61: what is parsed, or found in a text, has no source."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_FUNCTIONS}.Functions.of_module": _without_marks(_lookup(f"{_FUNCTIONS}.Functions.of_module"))
    }


class ForgetsItems(ChangedPrograms):
    """Breaks law 61: an item has the source of its list, and none of its own."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._Run._item": _without_marks(_lookup(f"{_PROGRAM}._Run._item"))}


class LooksAtTheOutside(ChangedPrograms):
    """Breaks law 61: an argument has the sources of its list or dictionary, and not those of what is inside."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}.marks_in": lambda node: node.marks}


class KeepsNames(ChangedPrograms):
    """Breaks law 61: a name of a service is one, also as a part of a text."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}.words": _same, f"{_FUNCTIONS}.words": _same}


class TrustsAnswers(ChangedPrograms):
    """Breaks law 61: what an agent answers about foreign words counts as what the program picks."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_CALLS}._FOREIGN_PARTS": frozenset({Part.WORDS})}


# --- what is decided --------------------------------------------------------------------------------------------------


def _decided_by_nobody(name: str, arguments: Any, control: Marks, marks: Any) -> PlannedCall:
    del control
    return PlannedCall(name, arguments, CLEAN, marks)


class ForgetsControl(ChangedPrograms):
    """Breaks law 61: a call in a branch is decided by the program, whatever the test has looked at."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}.PlannedCall": _decided_by_nobody}


class ForgetsBranches(ChangedPrograms):
    """Breaks law 61: what a branch has changed, or not, says nothing about its test."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._Run._mark_changed": lambda *_: None}


class ForgetsWhatDidNotRun(ChangedPrograms):
    """Breaks law 61: only a branch that runs is marked."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._is_stored": lambda *_: False}


class ForgetsLoops(ChangedPrograms):
    """Breaks law 61: how a loop was left says nothing about what comes after it."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._may_leave": lambda _: False}


def _branches(run: Any) -> Marks:
    marks: Marks = run._branches  # a part of the evaluator
    return marks


def _set_branches(run: Any, marks: Marks) -> None:
    run._branches = marks


class ForgetsWhatWasTried(ChangedPrograms):
    """Breaks law 61: whether a call has failed says nothing about it."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._Run._control": property(_branches, _set_branches)}


def _print_clean(run: Any, values: Sequence[Node]) -> None:
    run._printed.append(" ".join([str(plain(value)) for value in values]) + "\n")


class ForgetsWhatIsPrinted(ChangedPrograms):
    """Breaks law 61: what a program prints is its own."""

    parts: ClassVar[Mapping[str, Any]] = {f"{_PROGRAM}._Run._print": _print_clean}


class ForgetsWhatIsShown(ChangedPrograms):
    """Breaks law 61: the value of the last expression is the program's own."""

    parts: ClassVar[Mapping[str, Any]] = {
        f"{_PROGRAM}.PlanEnd": lambda printed, value, notes, _: PlanEnd(printed, value, notes, CLEAN)
    }


LIARS: tuple[type[ChangedPrograms], ...] = (
    ForgetsTexts,
    ForgetsOperators,
    ForgetsComparisons,
    ForgetsMethods,
    ForgetsFunctions,
    ForgetsModules,
    ForgetsItems,
    LooksAtTheOutside,
    KeepsNames,
    TrustsAnswers,
    ForgetsControl,
    ForgetsBranches,
    ForgetsWhatDidNotRun,
    ForgetsLoops,
    ForgetsWhatWasTried,
    ForgetsWhatIsPrinted,
    ForgetsWhatIsShown,
)


def _member(liar: type[ChangedPrograms]) -> Member:
    return Member(liar, 61, lambda examples: PlanKit(lambda: liar(planned=True), examples=examples))


PLANS: tuple[Member, ...] = tuple(map(_member, LIARS))
