"""Finds the kit that checks an implementation, by the contract that it implements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, get_origin, get_type_hints

from attrs import frozen

from agentloop.contracts.can_compile_messages import CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_keep_accounts import CanKeepAccounts
from agentloop.contracts.can_keep_state import CanKeepState
from agentloop.contracts.can_queue import CanQueue
from agentloop.contracts.can_sandbox import CanSandbox
from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.contracts.can_use_mode import CanUseMode
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.tool import Tool
from agentloop.errors import ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.executors.admission import CanLayerCalls
from agentloop.models.wire_formats.wire_format import WireFormat
from agentloop.testing.account_kit import AccountKit
from agentloop.testing.agent_tool_kit import AgentToolKit
from agentloop.testing.call_layer_kit import CallLayerKit
from agentloop.testing.compiler_kit import CompilerKit
from agentloop.testing.driver_kit import DriverKit
from agentloop.testing.event_bus_kit import EventBusKit
from agentloop.testing.executor_kit import ExecutorKit
from agentloop.testing.inference_kit import InferenceKit
from agentloop.testing.interceptor_kit import InterceptorKit
from agentloop.testing.journal_kit import JournalKit
from agentloop.testing.key_function_kit import KeyFunctionKit
from agentloop.testing.kit import Kit
from agentloop.testing.mcp_session_kit import McpSessionKit
from agentloop.testing.object_store_kit import ObjectStoreKit
from agentloop.testing.queue_kit import QueueKit
from agentloop.testing.sandbox_kit import SandboxKit
from agentloop.testing.store_kit import StoreKit
from agentloop.testing.tool_kit import ListenerKit
from agentloop.toolkits.import_path import ImportPath


@frozen
class _Choice:
    """A kind of implementations.

    Attributes:
        contract: the contract that they implement; None for functions, which implement none.
        make: makes the kit of a factory and a number of examples; None for a kit that needs more than a factory.
        needs: what it needs besides.
    """

    contract: type | None
    make: Callable[[Any, int], Kit] | None
    needs: str = ""


def _of(kit: Callable[..., Kit]) -> Callable[[Any, int], Kit]:
    return lambda factory, examples: kit(factory, examples=examples)


CHOICES: Mapping[str, _Choice] = {
    "accounts": _Choice(CanKeepAccounts, _of(AccountKit)),
    "agent": _Choice(None, _of(AgentToolKit)),
    "bus": _Choice(CanHandleEvents, _of(EventBusKit)),
    "compiler": _Choice(CanCompileMessages, _of(CompilerKit)),
    "driver": _Choice(CanUseTools, _of(DriverKit)),
    "executor": _Choice(CanExecuteToolCalls, _of(ExecutorKit)),
    "inference": _Choice(CanInfer, _of(InferenceKit)),
    "interceptor": _Choice(CanIntercept, _of(InterceptorKit)),
    "journal": _Choice(CanJournal, _of(JournalKit)),
    "key": _Choice(None, _of(KeyFunctionKit)),
    "layer": _Choice(CanLayerCalls, _of(CallLayerKit)),
    "listener": _Choice(None, _of(ListenerKit)),
    "mcp": _Choice(None, _of(McpSessionKit)),
    "mode": _Choice(CanUseMode, None, "a ModeKit needs how a model writes its turns"),
    "objects": _Choice(CanStoreObjects, _of(ObjectStoreKit)),
    "queue": _Choice(CanQueue, _of(QueueKit)),
    "sandbox": _Choice(CanSandbox, _of(SandboxKit)),
    "store": _Choice(CanKeepState, _of(StoreKit)),
    "tool": _Choice(Tool, None, "a ToolKit needs the arguments of calls"),
    "wire-format": _Choice(WireFormat, None, "a WireFormatKit needs recorded answers"),
}
"""The kinds of implementations by the names of `--agentloop-kit-as`."""


def kit_of(path: str, kind: str = "", *, examples: int = 100) -> Kit:
    """Return the kit for an implementation.

    Args:
        path: `module:name` of a class, of a function that returns an implementation, or of a kit.
        kind: which of `CHOICES` it is; empty to find that by its contracts.
        examples: the number of examples for each law; a kit has its own.

    Raises:
        ConfigurationError: there is no such name, or no single kit fits; says what to do.
    """
    if kind and kind not in CHOICES:
        raise ConfigurationError(f"no kit is for {kind!r:.60}, but for {', '.join(CHOICES)}{suggest(kind, CHOICES)}")
    found = ImportPath.parse(path).resolve()
    if isinstance(found, Kit):
        return found
    if not callable(found) or (not isinstance(found, type | FunctionType) and not kind):
        name = type(found).__name__
        raise ConfigurationError(
            f"{path} is an object of the class {name}, and a kit makes new ones: name a class, a function that returns one, or a kit"
        )
    name = kind or _kind_of(path, found)
    choice = CHOICES[name]
    if choice.make is None:
        raise ConfigurationError(f"{path} is a {name}, and {choice.needs}: make the kit in a module, and name that kit")
    return choice.make(found, examples)


def _kind_of(path: str, found: object) -> str:
    """Return the kind of a class, or of what a function returns."""
    made = _made_by(path, found)
    kinds = [
        name for name, choice in CHOICES.items() if choice.contract is not None and issubclass(made, choice.contract)
    ]
    if len(kinds) == 1:
        return kinds[0]
    shown = made.__name__
    if kinds:
        raise ConfigurationError(
            f"{shown} implements the contracts of {' and '.join(kinds)}: say which kit is meant, as in --agentloop-kit-as {kinds[0]}"
        )
    raise ConfigurationError(
        f"{shown} implements no contract that has a kit: inherit from one, or say what it is by --agentloop-kit-as, one of "
        f"{', '.join(CHOICES)}"
    )


def _made_by(path: str, found: object) -> type:
    if isinstance(found, type):
        return found
    try:
        made = get_type_hints(found).get("return")
    except (NameError, TypeError) as error:
        raise ConfigurationError(f"the annotations of {path} cannot be read: {error}") from error
    made = get_origin(made) or made
    if not isinstance(made, type) or made is type(None):
        raise ConfigurationError(
            f"{path} does not say what it returns: annotate it, as in `def make() -> MyJournal`, or use --agentloop-kit-as"
        )
    return made
