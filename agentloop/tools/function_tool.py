"""Tools made from functions."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeAlias, TypeVar, cast, overload

from attrs import evolve, field, frozen

from agentloop._shielding import call_in_thread
from agentloop.contracts.tool import (
    DEFAULT_POLICY,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanDescribeDefaults,
    CanDescribeResult,
    CanPrepareArguments,
    CanPresentResult,
    CanReconcileCall,
    CanRequireDependencies,
    CanUseInline,
    CanUseThread,
    ToolContext,
    ToolFromSpec,
    ToolPolicy,
)
from agentloop.errors import ContractViolation, InvalidDependencies, ToolDefinitionError
from agentloop.tools.fitting import with_defaults
from agentloop.tools.generators import items_of, items_of_async, last_value, last_value_in_thread
from agentloop.tools.presentation import Presenter, content_parts, is_content, type_name
from agentloop.tools.schema import json_schema
from agentloop.tools.signature import (
    Injected,
    Signature,
    bound_to_any,
    has_type,
    hints_of,
    injected_class,
    is_async,
    is_method,
)
from agentloop.values.forms import shorten
from agentloop.values.json import JsonObject, freeze_object, thaw
from agentloop.values.parts import Media, Text
from agentloop.values.records import CannotTell, Reconciliation
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import (
    ALL,
    ContentPart,
    Effect,
    Egress,
    ToolCall,
    ToolResult,
    ToolSpec,
    as_decides,
    as_egress,
    as_identifiers,
    as_own,
)

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Owner = TypeVar("Owner")

Shown: TypeAlias = str | ContentPart | Sequence[str | ContentPart]
"""The content of a result for the model: text, a part, or several of them."""
Show: TypeAlias = Callable[[Any], Shown]
"""A function from the return value of a tool to the content for the model."""


@frozen
class DataRules:
    """What a tool declares about the data of its calls; the attributes are those of `ToolSpec`."""

    egress: Egress = field(default=False, converter=as_egress)
    own: tuple[str, ...] = field(default=(), converter=as_own)
    identifiers: tuple[str, ...] = field(default=(), converter=as_identifiers)
    decides: tuple[str, ...] = field(default=ALL, converter=as_decides)

    @property
    def arguments(self) -> Iterator[tuple[str, str]]:
        """The names of arguments in it, each after what it is said about."""
        for about, names in (("egress", self.egress), ("decides", self.decides)):
            for name in () if isinstance(names, bool) or names == ALL else names:
                yield about, name


@frozen(eq=False, repr=False)
class FunctionTool(
    ShownByField,
    ToolFromSpec,
    CanPrepareArguments,
    CanDescribeDefaults,
    CanPresentResult,
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanReconcileCall,
    CanRequireDependencies,
    CanDescribeResult,
    Generic[P, R],
):
    """A tool made from an async function by `@tool`; it can still be called like the function.

    One that is made in a class is a method: `object.method` is the tool, bound to the object, and can be called like the method.

    Attributes:
        function: the function.
        signature: its signature and docstring, without the object of a method.
    """

    function: Callable[P, R]
    signature: Signature = field(repr=False)
    _effect: Effect = field(repr=False)
    _present: Presenter = field(repr=False)
    _schema: JsonObject | None = field(default=None, repr=False)
    _policy: ToolPolicy = field(default=DEFAULT_POLICY, repr=False)
    _reconciler: Reconciler | None = field(default=None, repr=False)
    _injected: Mapping[str, object] = field(factory=dict, repr=False)
    _context: ToolContext | None = field(default=None, repr=False)
    _is_unbound: bool = field(default=False, repr=False)
    _unbound: FunctionTool[..., Any] | None = field(default=None, repr=False)
    # A hash of what the tool serves, such as files: a call that waits for a decision waits again when it is another one.
    _definition: str = field(default="", repr=False, kw_only=True)
    _data: DataRules = field(default=DataRules(), repr=False, kw_only=True)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self: FunctionTool[Concatenate[Owner, Q], R], instance: Owner, owner: type | None = None
    ) -> FunctionTool[Q, R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the method as a tool of an object; any other tool is returned as it is."""
        if instance is None or not self._is_unbound:
            return self
        return evolve(
            self,
            function=cast("Any", self.function).__get__(instance, owner),
            reconciler=self._reconciler and self._reconciler.bind(instance),
            is_unbound=False,
            unbound=self,
        )

    # Name and effect are known without the spec: building it reads the docstring and all annotations.
    @property
    def name(self) -> str:
        """The name by which a model calls the tool.

        Raises:
            ToolDefinitionError: when the tool is a method without its object.
        """
        if self._is_unbound:
            raise ToolDefinitionError(
                f"{cast('Any', self.function).__qualname__} is a method: pass tools_of(object), or the method of an object, "
                "in place of the method of the class"
            )
        return self.signature.name

    @property
    def effect(self) -> Effect:
        """The effect of a call."""
        return self._effect

    @property
    def egress(self) -> Egress:
        """Whether data can leave by a call, and by which arguments."""
        return self._data.egress

    @property
    def policy(self) -> ToolPolicy:
        """The policy of calls."""
        return self._policy

    @property
    def is_bound_to_calls(self) -> bool:
        """Whether the function or its reconciler takes anything that is injected, or it is a generator, which reports progress."""
        return bool(self.signature.injected) or self._reconciler is not None or self.signature.yields is not None

    @property
    def spec(self) -> ToolSpec:
        """Name, description and parameters as one value, built at the first access."""
        return self._own_spec if self._unbound is None else self._unbound._own_spec  # noqa: SLF001  # the same class

    @cached_property
    def _own_spec(self) -> ToolSpec:
        # Requests and validators cache their work in the spec, so it always has to be the same object, for all objects of
        # a class with methods.
        name, (description, parameters) = self.signature.name, self.signature.definition
        return ToolSpec(
            name,
            description,
            self._schema or parameters,
            self._effect,
            definition=self._definition,
            pinned=self._definition,
            strict=self._policy.strict or self.signature.is_strict,
            egress=self._data.egress,
            own=self._data.own,
            identifiers=self._data.identifiers,
            decides=self._data.decides,
        )

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself, as another tool or a test does: nothing is validated or injected."""
        return self.function(*args, **kwargs)

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        """Await the function with these arguments and the injected ones; of a generator, await the last value."""
        called = self._call(arguments)
        if self.signature.yields is not None:
            return await last_value(called, self.signature.yields, self._context)
        result = await cast("Awaitable[Any]", called)
        if isinstance(result, AsyncIterator):
            return await items_of_async(result)
        return items_of(result) if isinstance(result, Iterator) else result

    async def reconcile(self, /, **arguments: Any) -> Reconciliation:
        """Find out whether an interrupted call has run, by the function `reconcile` of `@tool`.

        Raises:
            Exception: any error of that function.
        """
        return CannotTell() if self._reconciler is None else await self._reconciler.reconcile(arguments)

    @property
    def result_schema(self) -> JsonObject | None:
        """The schema of the declared return type; None if it has none, as content for the model and a `ToolResult`."""
        if is_content(self.signature.returns):
            return None
        try:
            return freeze_object(json_schema(self.signature.returns))
        except ToolDefinitionError:
            return None

    def prepare(self, arguments: dict[str, Any]) -> Mapping[str, Any]:
        """Convert arguments that satisfy the schema to the annotated types.

        A function that takes `**arguments` gets the defaults of its schema.

        Raises:
            InvalidArguments: when an argument is for an injected parameter, or cannot be converted.
        """
        return self.signature.prepare(with_defaults(self.spec, arguments) if self.signature.takes_any else arguments)

    def describe_defaults(self, arguments: Mapping[str, Any]) -> JsonObject:
        """Return the values that the function gives to what a call leaves out, by path."""
        own = self.signature.describe_defaults(arguments)
        if not self.signature.takes_any:
            return own
        completed = with_defaults(self.spec, dict(thaw(freeze_object(arguments))))
        added = {name: value for name, value in completed.items() if name not in arguments}
        return freeze_object({**own, **added})

    def present(self, result: Any) -> ToolResult:
        """Check the result against the declared return type and convert it to JSON.

        Raises:
            ToolFailed: when it does not match the type.
        """
        return self._present(result)

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that injects this state into the parameters annotated with `AgentState`."""
        return self._inject(AgentState, state)

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that injects this call into the parameters annotated with `ToolCall`."""
        return self._inject(ToolCall, call)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that injects this context into the parameters annotated with `ToolContext`.

        Raises:
            InvalidDependencies: when the dependencies of the context do not have the declared type.
        """
        # The loop checks the tools that it knows. This one may be of a group that discovers its tools, or have no loop.
        self.check_dependencies(context.dependencies)
        bound = self._inject(ToolContext, context)
        return bound if self.signature.yields is None else evolve(bound, context=context)

    def check_dependencies(self, dependencies: object) -> None:
        """Check that the dependencies have the type that a parameter annotated `ToolContext[…]` declares.

        Raises:
            InvalidDependencies: when they have another one.
        """
        for hint in self.signature.dependencies:
            if not has_type(dependencies, hint):
                found = "and there are none" if dependencies is None else f"not {type(dependencies).__qualname__}"
                raise InvalidDependencies(
                    f"the tool {self.signature.name!r} needs dependencies of type {type_name(hint)}, {found}: pass them as "
                    "dependencies=… to the execution"
                )

    def _inject(self, kind: Injected, value: object) -> Self:
        arguments = {name: value for name, injected in self.signature.injected.items() if injected is kind}
        reconciler = None if self._reconciler is None else self._reconciler.inject(kind, value)
        # Most tools have nothing injected, and need no copy per call.
        if not arguments and reconciler is self._reconciler:
            return self
        return evolve(self, injected={**self._injected, **arguments}, reconciler=reconciler)

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        function = cast("Callable[..., Any]", self.function)
        return function(**arguments, **self._injected)


# Executors recognize blocking tools by isinstance(tool, CanUseThread), so a plain function needs a class of its own.
@frozen(eq=False, repr=False)
class PlainFunctionTool(FunctionTool[P, R], CanUseThread):
    """A tool made from a plain function; an executor runs it in a thread."""

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        """Call the function in a thread of asyncio's default executor."""
        return await call_in_thread(self.use_in_thread, **arguments)

    def use_in_thread(self, /, **arguments: Any) -> Any:
        """Call the function with these arguments and the injected ones; run a generator to its end."""
        called = self._call(arguments)
        if self.signature.yields is not None:
            return last_value_in_thread(called, self.signature.yields, self._context)
        if isinstance(called, AsyncIterator):
            return items_of_async(called)
        return items_of(called) if isinstance(called, Iterator) else called


@frozen(eq=False, repr=False)
class InlineFunctionTool(FunctionTool[P, R], CanUseInline):
    """A tool made from a plain function that is pure and short; an executor calls it in the event loop."""

    async def use(self, /, *_: Any, **arguments: Any) -> Any:
        """Call the function."""
        return self.use_inline(**arguments)

    def use_inline(self, /, **arguments: Any) -> Any:
        """Call the function with these arguments and the injected ones."""
        result = self._call(arguments)
        return items_of(result) if isinstance(result, Iterator) else result


@frozen(eq=False, repr=False)
class Reconciler(ShownByField):
    """The function behind `@tool(reconcile=…)`: it finds out whether an interrupted call has run.

    Attributes:
        function: the function, plain or async.
        names: the parameters of the tool that it takes.
        injected: its injected parameters, each with its class.
        is_unbound: whether it is a method without its object.
    """

    function: Callable[..., Any]
    names: frozenset[str]
    injected: Mapping[str, Injected]
    is_unbound: bool = False
    _values: Mapping[str, object] = field(factory=dict, repr=False)

    @classmethod
    def of(cls, function: Callable[..., Any], signature: Signature) -> Reconciler:
        """Read a function.

        Args:
            function: the function; it takes any of the tool's parameters by their names, and the same injected classes.
            signature: the signature of the tool.

        Raises:
            ToolDefinitionError: when it has a required parameter that the tool does not have.
        """
        if not callable(function):
            raise ToolDefinitionError(f"reconcile of {signature.name!r} has to be a function, not {function!r:.100}")
        is_unbound = is_method(function)
        hints = hints_of(function)
        names, injected = set[str](), dict[str, Injected]()
        for name, parameter in inspect.signature(bound_to_any(function) if is_unbound else function).parameters.items():
            kind = injected_class(hints.get(name))
            if kind is not None:
                injected[name] = kind
            elif name in signature.hints:
                names.add(name)
            elif parameter.default is parameter.empty:
                raise ToolDefinitionError(
                    f"the reconcile function of {signature.name!r} takes {name!r}, which the tool has no parameter for"
                )
        return cls(function, frozenset(names), injected, is_unbound)

    def bind(self, instance: object) -> Reconciler:
        """Return a copy for an object whose method is the tool."""
        if not self.is_unbound:
            return self
        return evolve(self, function=cast("Any", self.function).__get__(instance), is_unbound=False)

    def inject(self, kind: Injected, value: object) -> Reconciler:
        """Return a copy that injects this value into the parameters annotated with its class."""
        values = {name: value for name, injected in self.injected.items() if injected is kind}
        return evolve(self, values={**self._values, **values}) if values else self

    async def reconcile(self, arguments: Mapping[str, Any]) -> Reconciliation:
        """Find out whether the call with these arguments has run.

        Raises:
            ContractViolation: when the function does not return a `Reconciliation`.
            Exception: any error of the function.
        """
        # A reconciler declares only the parameters that it needs.
        accepted = {name: value for name, value in arguments.items() if name in self.names}
        if is_async(self.function):
            outcome = await self.function(**accepted, **self._values)
        else:
            outcome = await call_in_thread(self.function, **accepted, **self._values)
        if not isinstance(outcome, Reconciliation):
            raise ContractViolation(
                f"the reconcile function returned {outcome!r:.100}; it returns happened(value), did_not_happen() or "
                "cannot_tell(reason)"
            )
        return outcome


def tools_of(instance: object) -> list[FunctionTool[..., Any]]:
    """Return the methods of an object that are decorated with `@tool`, as tools of that object.

    Args:
        instance: the object; its class may inherit methods, and replace them by name.

    Returns:
        The tools in the order in which the classes define them, those of base classes first. A method that replaces a tool is a
        tool only if it is decorated, too.

    Raises:
        ToolDefinitionError: when its class has no such method, or the argument is a class.
    """
    if isinstance(instance, type):
        raise ToolDefinitionError(f"tools_of takes an object, not the class {instance.__qualname__}: create one")
    cls = type(instance)
    names = dict.fromkeys([name for kind in reversed(cls.__mro__) for name in vars(kind)])
    tools: list[FunctionTool[..., Any]] = []
    for name in names:
        attribute = inspect.getattr_static(cls, name)
        is_wrapped = isinstance(attribute, staticmethod | classmethod)
        member = attribute.__func__ if is_wrapped else attribute
        if isinstance(member, FunctionTool):
            owner: Any = cls if isinstance(attribute, classmethod) else instance
            tools.append(member.__get__(owner))
    if not tools:
        raise ToolDefinitionError(f"{cls.__qualname__} has no methods that are decorated with @tool")
    return tools


def with_show(present: Presenter, show: Show) -> Presenter:
    """Return a presenter that adds content for the model; the state still has the whole result.

    A function that fails does not fail the call, which ran. The model then reads that the tool ran, and why its result is not
    shown: the function may be there to keep a part of the result from the model.

    Args:
        present: the presenter of the whole result.
        show: the function from a return value to the content.
    """

    def present_content(result: Any) -> ToolResult:
        whole = present(result)
        try:
            return ToolResult(whole.value, _shown_parts(show(result)))
        except Exception as error:
            _logger.warning("the function `show` of a tool failed; the model does not see the result", exc_info=True)
            reason = shorten(f"{type(error).__name__}: {error}", _MAX_REASON)
            return ToolResult(whole.value, (Text(_NOT_SHOWN.format(reason)),))

    return present_content


_logger = logging.getLogger("agentloop.tools")
_MAX_REASON = 500
_NOT_SHOWN = "[The tool ran and succeeded. Its result cannot be shown, because its function `show` failed: {}]"


def _shown_parts(shown: object) -> list[ContentPart]:
    """Return what a function `show` returned as parts; anything but texts, media and lists with these is shown as its JSON form.

    Raises:
        TypeError: it returned nothing.
    """
    if shown is None:
        raise TypeError("it returned None; it returns a text, a medium, or a list of these")
    if isinstance(shown, str | Text | Media):
        return content_parts([shown])
    items = list(shown) if isinstance(shown, list | tuple | Iterator) else [shown]
    is_content = any(isinstance(item, str | Text | Media) for item in items)
    return content_parts(items if is_content else [items if isinstance(shown, Iterator) else shown])
