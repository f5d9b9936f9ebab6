"""The mode in which the provider's tool API is used."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.drivers.modes.call_validation import validate_call
from agentloop.values.inference_delta import InferenceDelta
from agentloop.values.inference_request import InferenceRequest
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_spec import ToolSpec


class _AsItIs(ModeStream):
    """Passes every piece on."""

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the piece."""
        return [delta]

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:  # noqa: ARG002  # nothing was held back
        """Return nothing."""
        return []


@frozen
class NativeMode(CanUseMode):
    """The provider's tool API: nothing is translated."""

    @property
    def name(self) -> str:
        """`native`."""
        return "native"

    def offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request."""
        return request

    def read(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:  # noqa: ARG002
        """Return the response."""
        return response

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Say whether a call can be executed."""
        return validate_call(call, tools)

    def stream(self, request: InferenceRequest) -> ModeStream:  # noqa: ARG002  # no request changes anything
        """Return what passes every piece on."""
        return _AsItIs()
