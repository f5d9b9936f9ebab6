"""The dependencies of an execution: a value that a loop has, or what a function of the loop makes for each run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from inspect import isawaitable, isroutine
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.execution_scope import Resources
from agentloop.contracts.tools import Tools
from agentloop.errors import DependenciesFailed, InvalidDependencies
from agentloop.values.run_requests import RunRequest, request_of
from agentloop.values.state import AgentState

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Deps = TypeVarWithDefault("Deps", default=Any)
else:  # type variables of Python 3.11 have no defaults
    Deps = TypeVar("Deps")

V = TypeVar("V")

MakeDependencies: TypeAlias = Callable[[RunRequest], Any]
"""Makes the dependencies of a run: a plain or async function, or a class; what it returns may be a context manager, plain or async."""
Dependencies: TypeAlias = (
    Callable[[RunRequest], Awaitable[V]]
    | Callable[[RunRequest], AbstractContextManager[V]]
    | Callable[[RunRequest], AbstractAsyncContextManager[V]]
    | Callable[[RunRequest], V]
    | V
    | None
)
"""The dependencies of a loop: a value of a type, or a function that makes one for each run; None for none."""

_KEY = "agentloop.dependencies"


class HasDependencies(Protocol):
    """The parts of a loop that dependencies are about."""

    @property
    def dependencies(self) -> Any:
        """The dependencies of executions that get no others: a value, or a function that makes them; None for none."""

    @property
    def tools(self) -> Tools:
        """The tools."""

    @property
    def executor(self) -> CanExecuteToolCalls:
        """Runs the calls."""

    def replace(self, *, dependencies: Any) -> Self:
        """Return a copy with these dependencies."""


def is_factory(dependencies: object) -> bool:
    """Return whether dependencies are made for each run: functions, methods and classes make them, anything else is a value."""
    return isroutine(dependencies) or isinstance(dependencies, partial | type)


def check_dependencies(
    loop: HasDependencies, given: object = None, *, runs_all: bool = False, remedy: str = ""
) -> None:
    """Check, before anything begins, that the tools of a loop can get the dependencies that they need.

    Dependencies that a function makes are checked when it has made them.

    Args:
        loop: the loop.
        given: the dependencies of the execution; None for those of the loop.
        runs_all: whether this process runs all tools, also those that the loop has executed elsewhere.
        remedy: another way to pass dependencies, as the end of the error's sentence.

    Raises:
        InvalidDependencies: a tool needs dependencies of a type, and gets others, or nothing makes them.
    """
    if given is None:
        given = loop.dependencies
        if is_factory(given):
            return
    tools = loop.tools if runs_all else loop.executor.local_tools(loop.tools)
    try:
        tools.check_dependencies(given)
    except InvalidDependencies as error:
        raise InvalidDependencies(f"{error}, {remedy}") if remedy else error from None


async def dependencies_of(loop: HasDependencies, state: AgentState, resources: Resources) -> Any:
    """Return the dependencies for a run of a state's execution: those of the loop, or what its function makes now.

    Args:
        loop: the loop.
        state: the state with which the run begins.
        resources: those of the run; when they are closed, a context manager that was made is left.

    Raises:
        InvalidDependencies: they do not have the type that a tool declares; they are closed.
        DependenciesFailed: the function raised an error.
    """
    if not is_factory(loop.dependencies):
        return loop.dependencies
    made = await make_dependencies(loop.dependencies, request_of(state), resources)
    try:
        loop.executor.local_tools(loop.tools).check_dependencies(made)
    except BaseException:
        await resources.aclose()
        raise
    return made


async def make_dependencies(make: Any, request: RunRequest, resources: Resources) -> Any:
    """Make dependencies, and enter them if they are a context manager.

    Args:
        make: the function; what is no function is a value, and is returned.
        request: what is known of the run.
        resources: leave the context manager when they are closed.

    Raises:
        DependenciesFailed: the function, or entering the context manager that it returned, raised an error.
    """
    if not is_factory(make):
        return make
    try:
        return await _make(make, request, resources)
    except Exception as error:
        raise DependenciesFailed(
            f"the dependencies of execution {request.execution_id!r} could not be made: {type(error).__name__}: {error}"
        ) from error


async def _make(make: MakeDependencies, request: RunRequest, resources: Resources) -> Any:
    made = make(request)
    if isawaitable(made):
        made = await made
    if isinstance(made, AbstractAsyncContextManager):
        return resources.open(_KEY, partial(_itself, await made.__aenter__()), partial(_leave_async, made))
    if isinstance(made, AbstractContextManager):
        return resources.open(_KEY, made.__enter__, partial(_leave, made))
    return made


def _itself(entered: object) -> object:
    return entered


async def _leave_async(made: AbstractAsyncContextManager[Any], _: object) -> None:
    await made.__aexit__(None, None, None)


def _leave(made: AbstractContextManager[Any], _: object) -> None:
    made.__exit__(None, None, None)


L = TypeVar("L", bound=HasDependencies)


def with_dependencies(agents: Mapping[str, L], dependencies: Any = None, *, runs_all: bool = False) -> dict[str, L]:
    """Return the loops that a process runs, with dependencies of the process, after a check of the loops' needs.

    Args:
        agents: the loops by name.
        dependencies: replaces their `dependencies`; None to leave each its own.
        runs_all: as for `check_dependencies`.

    Raises:
        InvalidDependencies: a tool needs dependencies of a type, and gets others, or nothing makes them.
    """
    if dependencies is not None:
        agents = {name: loop.replace(dependencies=dependencies) for name, loop in agents.items()}
    for name, loop in agents.items():
        remedy = f"as AgentLoop(…, dependencies=…) of the agent {name!r}, or to the server or worker that runs it"
        check_dependencies(loop, runs_all=runs_all, remedy=remedy)
    return dict(agents)
