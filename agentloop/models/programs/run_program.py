"""The tool with which a model runs programs that call the other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any, Protocol, Self

from attrs import Factory, evolve, field, frozen
from attrs.validators import instance_of

from agentloop.contracts.tool import (
    DEFAULT_POLICY,
    CanAccessToolContext,
    CanCallTools,
    CanContinueCall,
    CanLabelResult,
    CanPresentResult,
    InnerCalls,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.errors import ConfigurationError, ContractViolation, ProgramFailed
from agentloop.errors.hints import install_hint
from agentloop.models.programs.labeled_functions import FUNCTIONS
from agentloop.models.programs.labeled_values import Marks
from agentloop.models.programs.planned_calls import CallPlanned, PlannedCalls
from agentloop.models.programs.program import (
    DEFAULT_LIMITS,
    CallFunctions,
    FunctionCall,
    FunctionResult,
    ProgramLimits,
    ProgramResult,
)
from agentloop.models.programs.signatures import function_names, parameter_names
from agentloop.values.json import JsonObject, format_json, freeze_object
from agentloop.values.labels import Label
from agentloop.values.parts import Text
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolResult, ToolStatus

RUN_PROGRAM = "run_program"
"""The default name of the tool."""

DESCRIPTION = (
    "Run a Python program that calls the other tools as async functions, with their parameters as keyword arguments. "
    "Await each call: `x = await name(arg=1)`, or several at once: `a, b = await asyncio.gather(f(), g())`. A call that "
    "fails raises RuntimeError. You see what the program prints and the value of its last expression, and nothing else "
    "of what the tools return, so use it for several calls, loops and large results. The standard library is limited to asyncio, "
    "datetime, json, math, re and the like; there are no files, network, clock or classes of other packages."
)

PLANNED_DESCRIPTION = (
    "Run a Python program that calls the other tools as async functions, with their parameters as keyword arguments. "
    "Await each call: `x = await name(arg=1)`, or several at once: `a, b = await asyncio.gather(f(), g())`. Write the whole program "
    "before you have read anything: its calls then need fewer approvals. It has a subset of Python: assignments, if, for, while, "
    "comprehensions, f-strings, methods of texts, lists and dictionaries, lambda as a key, json, re, and the functions "
    f"{', '.join(sorted(FUNCTIONS))}; no def, class or with. A call that fails raises RuntimeError, which one try with one except can handle; every "
    "other error ends it. You see what the program prints and the value of its "
    "last expression, and nothing else of what the tools return: print only what you need."
)

_PARAMETERS = freeze_object(
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "the source of the program"}},
        "required": ["code"],
        "additionalProperties": False,
    }
)


@frozen(kw_only=True)
class RunProgram(Tool, CanAccessToolContext, CanCallTools, CanContinueCall, CanLabelResult, CanPresentResult):
    """Runs a program of the model. Each call that the program makes is a call like any other.

    The calls have the keys `<key of this call>/program/<number>`, pass the interceptors, are recorded, count against limits,
    and are in `ToolExecution.inner`. The program itself has no effect on the world. When it runs again, because its process
    died or because a call waited for a decision, calls that it made before are not made again.

    With `planned=True`, the values of a program carry labels. A program that a model has written before it read anything foreign keeps
    the decision to make its calls, whatever its calls return: with `approve="untrusted"`, a call with an effect waits only if foreign
    words stand in an argument that decides about it, or if it stands in a branch that depends on them. What the program picks, such as
    the largest of several files, follows the rule of its writer. Such programs are of a subset of Python.

    Attributes:
        name: the name by which the model calls the tool.
        description: what it does, for the model.
        planned: whether the values of programs carry labels.
        limits: what a program may use.
        policy: the timeout and other settings of the tool.

    Raises:
        ConfigurationError: the extra `code` is not installed.
    """

    name: str = RUN_PROGRAM
    planned: bool = field(default=False, validator=instance_of(bool))
    description: str = field(
        default=Factory(lambda self: PLANNED_DESCRIPTION if self.planned else DESCRIPTION, takes_self=True), repr=False
    )
    limits: ProgramLimits = field(default=DEFAULT_LIMITS, repr=False)
    policy: ToolPolicy = field(default=DEFAULT_POLICY, repr=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)
    _inner: InnerCalls | None = field(default=None, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        # Only looked for: the interpreter is loaded with the first program.
        if find_spec("pydantic_monty") is None:
            raise ConfigurationError(f"programs need the extra `code`: {install_hint('code')}")

    @property
    def parameters(self) -> JsonObject:
        """One text: the program."""
        return _PARAMETERS

    @property
    def effect(self) -> Effect:
        """Idempotent: under one key, no call of the program is made twice."""
        return Effect.IDEMPOTENT

    @property
    def is_local(self) -> bool:
        """True: the program runs here, and its calls where their tools do."""
        return True

    @property
    def continues_calls(self) -> bool:
        """Always true: the calls of the program are recorded."""
        return True

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy for this call."""
        return evolve(self, context=context)

    def with_inner_calls(self, inner: InnerCalls) -> Self:
        """Return a copy whose program makes its calls by this."""
        return evolve(self, inner=inner)

    async def use(self, *_: Any, code: str) -> ProgramResult | _Labeled:
        """Run the program to its end.

        Raises:
            ProgramFailed: it is invalid, raised an error or exceeded a limit.
            CallSuspended: one of its calls waits for a decision.
            ToolInDoubt: it ran again after an interruption, and made other calls than before.
        """
        context, inner = self._context, self._inner
        if context is None or inner is None:
            raise ContractViolation(
                f"the tool {self.name!r} needs the context of its call and its inner calls: run it by a ToolExecutor"
            )
        try:
            result = await self._run(context, inner, code)
        except ProgramFailed:
            inner.check_complete()
            raise
        inner.check_complete()
        return result

    async def _run(self, context: ToolContext, inner: InnerCalls, code: str) -> ProgramResult | _Labeled:
        interpreter = self._interpreter(context)
        if not self.planned:
            calls = _ProgramCalls(inner)
            return await interpreter.run(code, calls.functions, calls.execute)
        planned = PlannedCalls(inner, context.label)
        result, marks = await interpreter.run_planned(code, planned.functions, planned.execute)
        return _Labeled(result, None if context.label is None else planned.label_of(marks))

    def present(self, result: Any) -> ToolResult:
        """Show the model what the program printed and its value."""
        label = result.label if isinstance(result, _Labeled) else None
        result = result.result if isinstance(result, _Labeled) else result
        assert isinstance(result, ProgramResult)  # noqa: S101  # `use` returns one
        value = result.value if isinstance(result.value, str) else format_json(result.value).decode()
        limit = self.limits.output_characters
        if len(value) > limit:
            raise ProgramFailed(
                f"the value of the program is {len(value):,} characters of JSON, and at most {limit:,} are allowed"
            )
        shown = [result.printed] if result.printed else []
        shown += [value] if result.value is not None else []
        text = "\n".join([part.rstrip("\n") for part in shown] or [_NOTHING])
        notes = "".join([f"\n[{note}]" for note in result.notes])
        return ToolResult({"printed": result.printed, "value": result.value}, (Text(text + notes),), label=label)

    def _interpreter(self, context: ToolContext) -> CanRunPrograms:
        # Loaded with the first program: the interpreter is a package of its own.
        from agentloop.models.programs.interpreter import Interpreter

        limits = self.limits
        return context.scope.shared_resources.open(
            (Interpreter, limits), lambda: Interpreter(limits), lambda opened: opened.aclose()
        )


_NOTHING = "The program printed nothing and has no value."


class CanRunPrograms(Protocol):
    """What the tool needs of an interpreter."""

    async def run(self, source: str, functions: Mapping[str, Sequence[str]], call: CallFunctions) -> ProgramResult:
        """Run a program to its end."""

    async def run_planned(
        self, source: str, functions: Mapping[str, Sequence[str]], call: CallPlanned
    ) -> tuple[ProgramResult, Marks]:
        """Run a planned program to its end, and return the marks of its result, too."""


@frozen
class _Labeled:
    """The result of a planned program, with who had a part in it."""

    result: ProgramResult
    label: Label | None


class _ProgramCalls:
    """The calls of one program, between the functions of its source and the tools."""

    def __init__(self, inner: InnerCalls) -> None:
        self._inner = inner
        functions = function_names(inner.specs)
        self._names = {function: name for name, function in functions.items()}
        self.functions: Mapping[str, Sequence[str]] = {
            functions[spec.name]: parameter_names(spec) for spec in inner.specs
        }

    async def execute(self, calls: Sequence[FunctionCall]) -> Sequence[FunctionResult]:
        """Execute calls of the program as one batch."""
        requested = [ToolCall("", self._names[call.name], format_json(call.arguments).decode()) for call in calls]
        return [_result_of(execution) for execution in await self._inner.execute(requested)]


_ERROR_TYPES = {
    ToolStatus.BLOCKED: "PermissionError",
    ToolStatus.TIMED_OUT: "TimeoutError",
    ToolStatus.REJECTED: "ValueError",
}
"""The exceptions that calls raise in a program; all others are RuntimeError."""


def _result_of(execution: ToolExecution) -> FunctionResult:
    if execution.succeeded:
        return FunctionResult(execution.value)
    return FunctionResult(
        error=f"{execution.name}: {execution.text}", error_type=_ERROR_TYPES.get(execution.status, "RuntimeError")
    )
