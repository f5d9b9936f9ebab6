"""The checks of the parameters of loops; their errors name what is wrong and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from os import PathLike
from types import FunctionType
from typing import Any, Literal, TypeVar

from agentloop.compilers.history import WholeConversation
from agentloop.contracts.can_compile_messages import CanCompileMessages, CompilerPipeline
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_provide_models import ModelConfig
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tool import ToolLike
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, InvalidParameter
from agentloop.errors.hints import suggest
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.loop.doors import answer_checks
from agentloop.values.bounds import Bounds
from agentloop.values.provenance import Provenance
from agentloop.values.records import InDoubt
from agentloop.values.run_requests import Identity
from agentloop.values.system_prompts import SystemPrompt, as_prompt_function
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.visible_text import escape_invisible

_MAX_NAME = 255
"""The most characters of the name of an agent: as many as the name of a file can have, after which an agent in a file is named."""

T = TypeVar("T")
Option = TypeVar("Option", bound=StrEnum)


def require(what: str, value: object, kind: type[T] | tuple[type[T], ...], expected: str, remedy: str = "") -> T:
    """Return a parameter that has a type.

    Args:
        what: the parameter, as the subject of a sentence.
        value: its value.
        kind: the type that it must have.
        expected: the type in words.
        remedy: what to write instead, as a further sentence.

    Raises:
        InvalidParameter: it has another type.
    """
    if not isinstance(value, kind):
        raise InvalidParameter(f"{what} has to be {expected}, not {_describe(value)}" + (remedy and f"; {remedy}"))
    return value


def _describe(value: object) -> str:
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return f"{value!r:.100}"
    if isinstance(value, type):
        return f"the class {value.__name__}; create an object of it: {value.__name__}(…)"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    return type(value).__name__


def require_option(what: str, value: object, options: type[Option]) -> Option:
    """Return the option of this name.

    Raises:
        InvalidParameter: there is none.
    """
    try:
        return options(str(value) if isinstance(value, str) else "")
    except ValueError:
        known = [option.value for option in options]
        hint = suggest(str(value), known)
        raise InvalidParameter(f"{what} has to be one of {', '.join(known)}, not {_describe(value)}{hint}") from None


def require_number(what: str, value: object, *, minimum: float, maximum: float | None = None, expected: str) -> None:
    """Check a number.

    Args:
        what: the parameter, as the subject of a sentence.
        value: its value.
        minimum: the smallest number; a whole one if whole numbers are required.
        maximum: the largest number; None for no limit.
        expected: the range in words.

    Raises:
        InvalidParameter: it is no number, or outside of the range.
    """
    kinds = (int,) if isinstance(minimum, int) else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or value < minimum or (maximum is not None and value > maximum):  # type: ignore[operator]  # it is a number
        raise InvalidParameter(f"{what} has to be {expected}, not {_describe(value)}")


def invalid_input(value: object) -> InvalidParameter:
    """Return the error for what cannot be the input of an execution."""
    remedy = "; import_history reads the messages of other formats" if isinstance(value, list | Mapping) else ""
    return InvalidParameter(
        f"the input of an execution is a text, a Message or an AgentState, not {type(value).__name__}{remedy}"
    )


# --- the parts of a loop --------------------------------------------------------------------------------------------


def as_driver(driver: object) -> CanUseTools:
    """Return a driver."""
    remedy = ""
    if isinstance(driver, str):
        remedy = f"to call a model, write AgentLoop.for_model({driver!r:.100})"
    elif isinstance(driver, CanInfer | ModelConfig):
        remedy = "to call a model, write AgentLoop.for_model(model)"
    kind: type[CanUseTools] = CanUseTools  # type: ignore[type-abstract]  # for a check of types
    return require("the driver of AgentLoop", driver, kind, "a driver, such as ToolCallingDriver(model)", remedy)


def as_tools(tools: Tools | Iterable[ToolLike]) -> Tools:
    """Return the tools of single tools, groups and functions."""
    if isinstance(tools, Tools):
        return tools
    # Loaded here: a program that has tools of its own has loaded it already.
    from agentloop.tools.decorator import collect_tools

    try:
        return collect_tools(tools)
    except TypeError as error:
        raise InvalidParameter(str(error)) from None


def as_executor(executor: object) -> CanExecuteToolCalls:
    """Return an executor; a `ToolExecutor` for None."""
    if executor is None:
        return ToolExecutor()
    kind: type[CanExecuteToolCalls] = CanExecuteToolCalls  # type: ignore[type-abstract]  # for a check of types
    return require("the executor of AgentLoop", executor, kind, "an executor, such as ToolExecutor()")


def as_interceptors(interceptors: object) -> tuple[CanIntercept, ...]:
    """Return interceptors as a tuple."""
    if isinstance(interceptors, CanIntercept):
        name = type(interceptors).__name__
        raise InvalidParameter(
            f"the argument interceptors has to be a list, not {name}; put it in brackets: interceptors=[{name}(…)]"
        )
    if isinstance(interceptors, str | bytes | Mapping):
        raise InvalidParameter(f"the argument interceptors has to be a list, not {_describe(interceptors)}")
    items: Iterable[object] = require("the argument interceptors", interceptors, Iterable, "a list")
    return tuple([_as_interceptor(item) for item in items])


def _as_interceptor(item: object) -> CanIntercept:
    remedy = ""
    if isinstance(item, FunctionType):
        remedy = "wrap a function as in at('before_step', function)"
    elif isinstance(item, list | tuple):
        remedy = "pass its items one by one, with a * before the list"
    return require("an interceptor", item, CanIntercept, "an object of a subclass of Interceptor", remedy)


def as_approve(approve: object) -> Literal["untrusted", "effects"] | None:
    """Return which calls wait for a person."""
    match approve:
        case None | "untrusted" | "effects":
            return approve
    hint = suggest(str(approve), ("untrusted", "effects"))
    raise InvalidParameter(f"approve is 'untrusted', 'effects' or None, not {_describe(approve)}{hint}")


def with_approvals(parts: Mapping[str, Any], earlier: object = ()) -> dict[str, Any]:
    """Return the parts of a loop, in which an interceptor takes the place of `approve`.

    Args:
        parts: the parts that are given. Their interceptors are kept.
        earlier: the interceptors of a loop that these parts change. One that its `approve` has added is left out.
    """
    changed = {name: part for name, part in parts.items() if name != "approve"}
    if "approve" not in parts:
        return changed
    from agentloop.interception.rules import RequireApproval
    from agentloop.interception.untrusted import AskUntrusted

    known = {"untrusted": AskUntrusted(), "effects": RequireApproval()}
    if "interceptors" in parts:
        kept = list(as_interceptors(parts["interceptors"]))
    else:
        kept = [each for each in as_interceptors(earlier) if each not in known.values()]
    approve = as_approve(parts["approve"])
    changed["interceptors"] = kept if approve is None or known[approve] in kept else [*kept, known[approve]]
    return changed


def as_compiler(compiler: object) -> CanCompileMessages | None:
    """Return a compiler, which shows something to the part that makes summaries, if it begins with one; None for None."""
    if compiler is None:
        return None
    kind: type[CanCompileMessages] = CanCompileMessages  # type: ignore[type-abstract]  # for a check of types
    checked = require("the compiler of AgentLoop", compiler, kind, "a message compiler, such as TokenWindow(100_000)")
    first = checked.stages[0] if isinstance(checked, CompilerPipeline) else checked
    # A part that acts between steps shows what it gets, so a summary needs a compiler before it that shows it.
    return WholeConversation() | checked if isinstance(first, CanIntercept) else checked


def check_in_doubt(in_doubt: InDoubt, journal: CanJournal | None) -> None:
    """Check that there is a journal whose interrupted calls `in_doubt` is about.

    Raises:
        ConfigurationError: there is none.
    """
    if journal is None and in_doubt is not InDoubt.TELL:
        raise ConfigurationError(
            f"in_doubt={in_doubt.value!r} is about interrupted calls that a journal has recorded, and the loop has none: pass "
            "journal=…, or leave out in_doubt"
        )


def as_bus(events: object) -> CanHandleEvents:
    """Return a bus of events; a new `EventBus` for None."""
    if events is None:
        return EventBus()
    remedy = "to listen, write loop.wiretap(function)" if callable(events) else ""
    kind: type[CanHandleEvents] = CanHandleEvents  # type: ignore[type-abstract]  # for a check of types
    return require("the bus of events of AgentLoop", events, kind, "a bus, such as EventBus()", remedy)


def as_max_steps(max_steps: int | None) -> int | None:
    """Return a maximum number of steps."""
    if max_steps is not None:
        require_number("max_steps", max_steps, minimum=1, expected="a whole number from 1 on, or None for no limit")
    return max_steps


def as_prompt(prompt: Any) -> SystemPrompt:
    """Return instructions, or the function that returns them."""
    if not isinstance(prompt, str) and not callable(prompt):
        raise InvalidParameter(f"the system prompt is a text or a function of the state, not {_describe(prompt)}")
    return as_prompt_function(prompt)


def as_output_checks(checks: object) -> Sequence[object]:
    """Return checks of answers; none for None."""
    return () if checks is None or checks == () else answer_checks().output_checks(checks)


def as_output_type(output_type: Any) -> Any:
    """Return an output type that is not obviously a value."""
    if isinstance(output_type, str | bytes | bool | int | float | list | FunctionType):
        remedy = "; for a list of answers, write list[…]" if isinstance(output_type, list) else ""
        raise InvalidParameter(
            f"output_type has to be a type, or a JSON Schema as a dict, not {_describe(output_type)}{remedy}"
        )
    if output_type is object or output_type is Any:
        raise InvalidParameter(
            "output_type has to say something about the answer: name a type, such as dict[str, Any] for any JSON object, or leave "
            "it out for text"
        )
    return output_type


def as_name(name: object) -> str:
    """Return the name of an agent: a line of visible text of up to 255 characters; empty for none."""
    checked = require("the name of an agent", name, str, "a text")
    is_line = not {"\n", "\t"}.intersection(checked) and checked == escape_invisible(checked.strip())
    if not is_line or len(checked) > _MAX_NAME:
        raise InvalidParameter(
            f"the name of an agent is a line of visible text of up to {_MAX_NAME} characters, without spaces around it, not {name!r:.100}"
        )
    return checked


def as_principal(principal: object) -> Identity | None:
    """Return who asks for an execution; None for None."""
    if principal is None:
        return None
    remedy = f"write Identity({principal!r:.100})" if isinstance(principal, str) else ""
    return require("a principal", principal, Identity, "an Identity, as in Identity('ada', tenant='acme')", remedy)


def as_journal(journal: object) -> CanJournal | None:
    """Return a journal; None for None."""
    if journal is None:
        return None
    remedy = f"write SqliteJournal({str(journal)!r:.100})" if isinstance(journal, str | PathLike) else ""
    kind: type[CanJournal] = CanJournal  # type: ignore[type-abstract]  # for a check of types
    return require("the journal of AgentLoop", journal, kind, "a journal, such as SqliteJournal(path)", remedy)


def as_strict_writes(value: object) -> bool:
    """Return a truth value."""
    return require("strict_writes", value, bool, "True or False")


def as_in_doubt(value: object) -> InDoubt:
    """Return what to do about calls that may have run."""
    return require_option("in_doubt", value, InDoubt)


def as_provenance(value: object) -> Provenance:
    """Return what is recorded of changes."""
    return require_option("provenance", value, Provenance)


def as_bounds(bounds: object) -> Bounds:
    """Return bounds."""
    return require("the bounds of AgentLoop", bounds, Bounds, "an object of Bounds, as in Bounds(text_characters=…)")


def as_clock(clock: object) -> Clock:
    """Return a clock; a `SystemClock` for None."""
    kind: type[Clock] = Clock  # type: ignore[type-abstract]  # for a check of types
    return SystemClock() if clock is None else require("the clock of AgentLoop", clock, kind, "a Clock")


def as_ids(ids: object) -> IdSource:
    """Return a source of ids; `RandomIds` for None."""
    kind: type[IdSource] = IdSource  # type: ignore[type-abstract]  # for a check of types
    return RandomIds() if ids is None else require("the source of ids of AgentLoop", ids, kind, "an IdSource")
