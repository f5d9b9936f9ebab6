"""The decorator `@tool`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, overload

from agentloop.contracts.tool import (
    OrderingKey,
    ResourceKey,
    Supersedes,
    Tool,
    ToolGroup,
    ToolLike,
    ToolPolicy,
    arguments_in,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.errors.hints import suggest
from agentloop.tools.function_tool import (
    DataRules,
    FunctionTool,
    InlineFunctionTool,
    PlainFunctionTool,
    Reconciler,
    Show,
    with_show,
)
from agentloop.tools.presentation import Presenter, presenter
from agentloop.tools.signature import Signature, bound_to_any, is_async, is_method
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.policies import CachePolicy, CircuitPolicy, Deduplicated, RateLimit, RetryPolicy
from agentloop.values.tool_calls import ALL, Effect, EgressLike, NamesLike

P = ParamSpec("P")
R = TypeVar("R")


@overload
def tool(function: Callable[P, R], /) -> FunctionTool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    effect: Effect | str = Effect.EFFECT,
    timeout: float | None = None,
    sequential: bool = False,
    strict: bool = False,
    key: OrderingKey | None = None,
    max_result_bytes: int | None = None,
    show: Show | None = None,
    supersedes: Supersedes | None = None,
    resource: ResourceKey | None = None,
    retry: RetryPolicy | None = None,
    cache: CachePolicy | None = None,
    rate_limit: RateLimit | None = None,
    circuit: CircuitPolicy | None = None,
    deadline: float | None = None,
    deduplicate: Deduplicated | None = None,
    reconcile: Callable[..., Any] | None = None,
    inline: bool = False,
    eager: bool = True,
    repeatable: bool | None = None,
    runs_code: bool = False,
    egress: EgressLike = False,
    own: NamesLike = (),
    identifiers: NamesLike = (),
    decides: NamesLike = ALL,
) -> Callable[[Callable[P, R]], FunctionTool[P, R]]: ...


def tool(  # noqa: PLR0913  # the options of a tool, each by its name
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    schema: Mapping[str, Any] | None = None,
    effect: Effect | str = Effect.EFFECT,
    timeout: float | None = None,
    sequential: bool = False,
    strict: bool = False,
    key: OrderingKey | None = None,
    max_result_bytes: int | None = None,
    show: Show | None = None,
    supersedes: Supersedes | None = None,
    resource: ResourceKey | None = None,
    retry: RetryPolicy | None = None,
    cache: CachePolicy | None = None,
    rate_limit: RateLimit | None = None,
    circuit: CircuitPolicy | None = None,
    deadline: float | None = None,
    deduplicate: Deduplicated | None = None,
    reconcile: Callable[..., Any] | None = None,
    inline: bool = False,
    eager: bool = True,
    repeatable: bool | None = None,
    runs_code: bool = False,
    egress: EgressLike = False,
    own: NamesLike = (),
    identifiers: NamesLike = (),
    decides: NamesLike = ALL,
) -> Any:
    """Turn a typed function, plain or async, into a tool that a model can call.

    The docstring gives the description, its parameter section describes the parameters, and the type hints give the JSON
    Schema. A parameter annotated `AgentState`, `ToolCall` or `ToolContext` is injected and never shown to a model.
    The function stays directly callable. A method that is decorated in its class is a tool of each object: `object.method`, and
    `tools_of(object)` for all of them. Of a generator, each value is progress of the call, and the last one is the result.

        @tool
        def convert(amount: Annotated[float, "pounds"], currency: Literal["EUR", "USD"]) -> float:
            \"\"\"Convert an amount in pounds to another currency.\"\"\"
            return amount * rates[currency]

    Args:
        function: the function, when the decorator is used without parentheses.
        name: replaces the name of the function.
        description: replaces the text of the docstring.
        schema: a JSON Schema of type object that replaces the one of the hints; arguments are still converted to the
            annotated types. The function may then take `**arguments`.
        effect: the effect of a call on the world: `pure`, `idempotent` or `effect`.
        timeout: seconds after which a call times out.
        strict: reject arguments of another type than the schema requires, such as a number in quotation marks, in place of
            coercing them.
        sequential: run each call alone: after all calls before it, before all calls after it.
        key: calls with the same key run one after the other; a name, or a function from the arguments to one.
        max_result_bytes: maximum size of a result in the request to the model, in bytes.
        show: a function from the return value to the content for the model: text or parts. The state has the whole result.
        supersedes: the earlier results that a new one makes stale: those of the tool's calls with the `same arguments`, of all
            calls of the `same tool`, of calls of any tool about the `same resource`, or those of the tool for which a function
            of the earlier and the new arguments is true.
        resource: what a call is about: a name such as `file:{path}`, in which `{path}` stands for the argument `path`, or a
            function from the arguments to one or several names. Tools that are about the same things use the same names.
        retry: how a failed call is tried again. The loop applies this and the next five.
        cache: how long a result is reused.
        rate_limit: how often calls may run.
        circuit: when calls are rejected because the tool keeps failing.
        deadline: seconds for a call in all, waits and retries included.
        deduplicate: which calls share the result of one.
        reconcile: a function, plain or async, that finds out after a crash whether an interrupted call has run. It takes any
            of the tool's parameters by their names, or a `ToolContext` for the idempotency key, and returns
            `happened(value)`, `did_not_happen()` or `cannot_tell(reason)`.
        inline: whether calls of a plain function run in the event loop in place of a thread, which is cheaper by the handover to the
            thread. Nothing else runs meanwhile, and no timeout or cancellation reaches it: only for pure functions that take
            microseconds and never wait.
        eager: whether a call may start before the model's answer is complete, if the tool is pure and the driver starts calls
            eagerly.
        repeatable: whether a call of a tool with an effect runs again when a model repeats it directly after it has succeeded, as
            is meant for a test run, a poll or a message that is sent twice. None is True for a tool with a cache or deduplication,
            which say which calls are the same, and False for others.
        runs_code: whether an argument is code or a command, so that the approval of one call says nothing about another.
        egress: whether data can leave the program by a call: True, or better the names of the parameters that carry an address,
            as in `egress="url"`, so that approvals can look at where it goes. This and the next three say whose words go where,
            which matters with `approve="untrusted"`.
        own: the names of the fields of the result, at any depth, whose words the service vouches for, as in `own="id sent_at"`, or
            `*` for all; anything else may be the words of somebody else.
        identifiers: the names of fields that name things of the service by words that somebody else may have chosen, as in
            `identifiers="channel"`: a program may pass one on as a whole argument.
        decides: the names of the parameters that decide whom and what a call reaches, as in `decides="to amount"`, `*` for all, or an
            empty text for none. The others are contents, which may be the words of somebody else.

    Raises:
        ToolDefinitionError: when something that a model needs is missing or has no JSON form; lists all problems with the
            fix for each.
    """
    limited = partial(ToolPolicy, retry=retry, cache=cache, rate_limit=rate_limit, circuit=circuit, deadline=deadline)
    policy = limited(
        timeout=timeout,
        sequential=sequential,
        strict=strict,
        key=key,
        max_result_bytes=max_result_bytes,
        supersedes=supersedes,
        resource=resource,
        deduplicate=deduplicate,
        eager=eager,
        repeatable=repeatable,
        runs_code=runs_code,
    )
    data = DataRules(egress, own, identifiers, decides)
    described = partial(_make_tool, name=name, description=description, schema=schema, effect=_parse_effect(effect))
    make = partial(described, data=data, policy=policy, show=show, reconcile=reconcile, inline=inline)
    return make if function is None else make(function)


def _checked_text(option: str, text: str | None) -> str:
    if text is not None and not text.strip():
        raise ToolDefinitionError(f"the {option} of a tool is not empty: omit {option}= for that of the function")
    return text or ""


def collect_tools(tools: Tools | Iterable[ToolLike]) -> Tools:
    """Return the set of tools in a list of tools, groups and functions. A function becomes a tool as by `@tool`.

    Args:
        tools: the list; a function may also be a method of an object, a `functools.partial` or an object with `__call__`.

    Raises:
        TypeError: if it is not a list, or an element is none of these.
        ToolDefinitionError: if a function cannot become a tool, or two tools have the same name.
    """
    if isinstance(tools, Tools):
        return tools
    _check_list(tools)
    return Tools.of(map(_as_element, tools))


def _check_list(tools: object) -> None:
    is_single = callable(tools) or isinstance(tools, Tool | ToolGroup)
    if is_single or isinstance(tools, str) or not isinstance(tools, Iterable):
        hint = ": put it in brackets, as in tools=[…]" if is_single else ""
        raise TypeError(f"tools are passed as a list, and this is of type {type(tools).__name__}{hint}")


def _as_element(element: object) -> Tool | ToolGroup:
    if isinstance(element, Tool | ToolGroup):
        return element
    if callable(element) and not isinstance(element, type):
        return tool(element)
    return cast("Tool", element)  # it is neither: `Tools.of` names it


def _make_tool(
    function: Any,
    *,
    name: str | None,
    description: str | None,
    schema: Mapping[str, Any] | None,
    effect: Effect,
    data: DataRules,
    policy: ToolPolicy,
    show: Show | None,
    reconcile: Callable[..., Any] | None,
    inline: bool,
) -> FunctionTool[..., Any]:
    function = _checked_function(function, has_schema=schema is not None)
    is_unbound = is_method(function)
    signature = Signature.of(
        bound_to_any(function) if is_unbound else function,
        name=_checked_text("name", name),
        description=_checked_text("description", description),
        has_schema=schema is not None,
    )
    _check_resource(policy.resource, signature)
    parameters = None if schema is None else _check_parameters(schema, signature)
    _check_data(data, signature, parameters)
    if inline:
        _check_inline(function, signature, effect, policy)
    present = _present_with(show, signature)
    # A plain function may block, and would stop the event loop outside of a thread.
    kind = FunctionTool if is_async(function) else InlineFunctionTool if inline else PlainFunctionTool
    reconciler = None if reconcile is None else Reconciler.of(reconcile, signature)
    return kind(function, signature, effect, present, parameters, policy, reconciler, is_unbound=is_unbound, data=data)


def _present_with(show: Show | None, signature: Signature) -> Presenter:
    shown: object = show
    if not (shown is None or callable(shown)) or is_async(shown):
        # It is called after the tool, whose outcome a mistake here would cost.
        raise ToolDefinitionError(f"show of {signature.name!r} has to be a plain function, not {shown!r:.100}")
    if show is None:
        return presenter(signature.returns)
    return with_show(presenter(signature.returns, testifies=False), show)


def _checked_function(function: Any, *, has_schema: bool) -> Any:
    """Return the function of a tool; that of a static method."""
    if isinstance(function, Tool):
        raise ToolDefinitionError(f"{function!r} is a tool already")
    if isinstance(function, partial) and isinstance(function.func, Tool):
        raise ToolDefinitionError(
            "a partial of a tool cannot be a tool: make it of the function, as in partial(add.function, …)"
        )
    if isinstance(function, classmethod):
        raise ToolDefinitionError(f"put @classmethod above @tool: {function.__func__.__qualname__}")
    if isinstance(function, staticmethod):
        function = function.__func__
    if not callable(function) or isinstance(function, type):
        raise ToolDefinitionError(
            f"@tool takes a function, not {function!r}; options are passed by name, and a class becomes a tool by "
            "subclassing TypedTool"
        )
    if not has_schema and getattr(function, "__name__", "") == "<lambda>":
        raise ToolDefinitionError(
            "a lambda has no docstring and no type hints: write a function with both, or pass name=, description= and schema= to "
            "tool(…)"
        )
    return function


def _check_inline(function: Any, signature: Signature, effect: Effect, policy: ToolPolicy) -> None:
    """Check that a function may run in the event loop, where nothing can interrupt it."""
    problems = {
        "an async function runs in the event loop anyway": is_async(function),
        "a generator may wait between its values": signature.yields is not None,
        "a function with an effect may wait for something: say effect='pure' if it only computes": effect
        is not Effect.PURE,
        "nothing can interrupt it, so that it has neither a timeout nor a deadline": policy.timeout is not None
        or policy.deadline is not None,
    }
    problem = next((problem for problem, is_met in problems.items() if is_met), None)
    if problem is not None:
        raise ToolDefinitionError(f"{signature.name!r} cannot be inline: {problem}")


def _check_resource(resource: ResourceKey | None, signature: Signature) -> None:
    names = arguments_in(resource) if isinstance(resource, str) else ()
    unknown = next((name for name in names if name not in signature.hints), None)
    if unknown is not None:
        raise ToolDefinitionError(
            f"the resource {resource!r} of {signature.name!r} names {unknown!r}, which is none of its parameters"
            f"{suggest(unknown, signature.hints)}"
        )


def _check_data(data: DataRules, signature: Signature, schema: JsonObject | None) -> None:
    known = signature.hints if schema is None else schema.get("properties", {})
    for about, name in data.arguments:
        if name not in known:
            raise ToolDefinitionError(
                f"{about} of {signature.name!r} names {name!r}, which is none of its parameters{suggest(name, known)}"
            )


def _check_parameters(schema: Mapping[str, Any], signature: Signature) -> JsonObject:
    try:
        parameters = freeze_object(schema)
    except NotJson as error:
        raise ToolDefinitionError(f"the schema of {signature.name!r} is not JSON: {error}") from error
    if parameters.get("type") != "object":
        raise ToolDefinitionError(f"the schema of {signature.name!r} has to be of type object: arguments come by name")
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        raise ToolDefinitionError(f"the properties in the schema of {signature.name!r} have to be an object")
    # Injected parameters are not among the hints either: a schema must not offer them to a model.
    known = signature.hints.keys() if not signature.takes_any else properties.keys() - signature.injected.keys()
    unknown = properties.keys() - known
    if unknown:
        raise ToolDefinitionError(
            f"the schema of {signature.name!r} has {sorted(unknown)}, which the function has no parameters for"
        )
    return parameters


def _parse_effect(effect: Effect | str) -> Effect:
    try:
        return Effect(effect)
    except ValueError:
        known = ", ".join(repr(member.value) for member in Effect)
        raise ToolDefinitionError(f"{effect!r} is not an effect; use one of {known}") from None
