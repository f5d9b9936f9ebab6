"""Modes that have the methods of `CanUseMode` without being subclasses of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Self

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeLike, ModeStream, ToolCallValidation
from agentloop.contracts.tools import Tools
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.tool_calls import ToolCall, ToolSpec

_REQUIRED: Final = tuple(sorted(CanUseMode.__abstractmethods__))


def as_mode_or_name(mode: ModeLike | str) -> CanUseMode | str:
    """Return the name of a mode, or a mode as drivers use it.

    Raises:
        TypeError: it is neither a name nor an object with the methods of a mode.
    """
    return mode if isinstance(mode, str) else as_mode(mode)


def as_mode(mode: ModeLike) -> CanUseMode:
    """Return a mode as drivers use it.

    Args:
        mode: an object with the methods of a mode. It may have the other members of `CanUseMode`, such as `reprompts`.

    Raises:
        TypeError: it lacks methods of a mode, which the message names, or is a class.
    """
    if isinstance(mode, CanUseMode):
        return mode
    if isinstance(mode, type):
        raise TypeError(f"a mode is an object, and {mode.__name__} is a class: write {mode.__name__}(…)")
    lacking = [name for name in _REQUIRED if not _has(mode, name)]
    if lacking:
        raise TypeError(
            f"a tool-calling mode has {', '.join(_REQUIRED)}, as agentloop.contracts.CanUseMode describes them; this object of type "
            f"{type(mode).__name__} lacks {', '.join(lacking)}"
        )
    return StructuralMode(mode)


def _has(mode: object, name: str) -> bool:
    member = getattr(mode, name, None)
    return isinstance(member, str) if name == "name" else callable(member)


@frozen(eq=False)
class StructuralMode(CanUseMode):
    """A mode around an object that has the methods of one. Members that the object lacks are inherited from `CanUseMode`.

    Attributes:
        mode: the object.
    """

    mode: ModeLike

    @property
    def name(self) -> str:
        """The name of the mode."""
        return self.mode.name

    @property
    def reprompts(self) -> bool:
        """Whether an invalid call is returned to the model within the step."""
        return bool(getattr(self.mode, "reprompts", super().reprompts))

    @property
    def translates(self) -> bool:
        """Whether the mode changes requests and responses."""
        return bool(getattr(self.mode, "translates", super().translates))

    @property
    def streams_calls(self) -> bool:
        """Whether a call that is complete in the deltas of a stream is a call of the response."""
        return bool(getattr(self.mode, "streams_calls", super().streams_calls))

    @property
    def fallback(self) -> CanUseMode | None:
        """The mode in which to call a model whose provider refuses tools."""
        fallback: ModeLike | None = getattr(self.mode, "fallback", None)
        return None if fallback is None else as_mode(fallback)

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return evolve(self, mode=self.mode.with_bounds(bounds)) if hasattr(self.mode, "with_bounds") else self

    def with_tools(self, tools: Tools) -> Self:
        """Return a mode that knows the tools of the execution."""
        return evolve(self, mode=self.mode.with_tools(tools)) if hasattr(self.mode, "with_tools") else self

    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools, and further tools that the mode needs."""
        added: Tools = self.mode.add_tools(tools) if hasattr(self.mode, "add_tools") else tools
        return added

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request in the form in which the model receives it."""
        return self.mode.render_request(request)

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response in neutral form, with its calls parsed."""
        return self.mode.parse_response(response, request)

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Return whether a call can be executed."""
        return self.mode.validate(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return the translator of a streamed response."""
        return self.mode.stream(request)
