"""The mode in which a model calls tools by programs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_use_mode import CanUseMode, ModeStream, ToolCallValidation
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.models.modes.calls import validate_call
from agentloop.models.modes.native import NativeMode
from agentloop.models.programs.run_program import RUN_PROGRAM, RunProgram
from agentloop.models.programs.signatures import render_signatures
from agentloop.values.bounds import Bounds
from agentloop.values.inference import InferenceRequest, InferenceResponse
from agentloop.values.json import JsonObject
from agentloop.values.messages import ResponsePart
from agentloop.values.tool_calls import ToolCall, ToolSpec


@frozen(kw_only=True)
class ProgramMode(CanUseMode):
    """Offers one tool, which runs programs; the other tools are in its description, as typed Python functions.

    Requests and responses take the form of another mode on their way to the model. The tool has to be among those of the loop;
    `ToolCallingDriver` adds it.

    Attributes:
        form: the mode that suits the model.
        tool_name: the name of the tool that runs programs.
        results: the JSON Schemas of results, by the names of the tools; those of the bound tools.
    """

    form: CanUseMode = NativeMode()  # noqa: RUF009  # immutable
    tool_name: str = RUN_PROGRAM
    results: Mapping[str, JsonObject] = field(factory=dict, repr=False, eq=False)

    @property
    def name(self) -> str:
        """`program`."""
        return "program"

    @property
    def reprompts(self) -> bool:
        """As in the mode that gives requests their form."""
        return self.form.reprompts

    @property
    def fallback(self) -> CanUseMode | None:
        """The mode with the form in which to call a model whose provider refuses tools; None if the refusal is an error."""
        form = self.form.fallback
        return None if form is None else evolve(self, form=form)

    def with_bounds(self, bounds: Bounds) -> Self:
        """Return a mode that reads answers within these bounds."""
        return evolve(self, form=self.form.with_bounds(bounds))

    def with_tools(self, tools: Tools) -> Self:
        """Return a mode that describes what these tools return."""
        return evolve(self, results=tools.result_schemas)

    def add_tools(self, tools: Tools) -> Tools:
        """Return the tools with the one that runs programs.

        Raises:
            ConfigurationError: the extra `code` is not installed.
        """
        return tools if self.tool_name in tools else tools.plus(RunProgram(name=self.tool_name))

    def render_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the one tool.

        Raises:
            ConfigurationError: the model must call another tool, which programs cannot be forced to.
        """
        return self.form.render_request(self._offer(request))

    def parse_response(self, response: InferenceResponse, request: InferenceRequest) -> InferenceResponse:
        """Return the response with its calls; those of other tools are to be rejected."""
        parsed = self.form.parse_response(response, self._offer(request))
        if all(call.name == self.tool_name for call in parsed.tool_calls):
            return parsed
        return evolve(parsed, parts=tuple([self._reject_direct(part) for part in parsed.parts]))

    def validate(self, call: ToolCall, tools: Sequence[ToolSpec]) -> ToolCallValidation:
        """Check whether a call can be executed; only programs can."""
        return validate_call(call, [spec for spec in tools if spec.name == self.tool_name])

    def stream(self, request: InferenceRequest) -> ModeStream:
        """Return the translator of a streamed response."""
        return self.form.stream(self._offer(request))

    def _offer(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the functions in the description of the one tool."""
        others = [spec for spec in request.tools if spec.name != self.tool_name]
        runner = next((spec for spec in request.tools if spec.name == self.tool_name), None)
        if runner is None:
            return request  # it is not offered now, such as for a last answer
        described = (
            f"{runner.description}\n\nThe functions:\n\n```python\n{render_signatures(others, self.results)}\n```"
        )
        spec = ToolSpec(runner.name, described if others else runner.description, runner.parameters, runner.effect)
        if not request.tool_choice.allows(self.tool_name) and request.tool_choice.kind == "specific":
            raise ConfigurationError(
                f"in the mode 'program' the tool choice cannot be {request.tool_choice.name!r}: only {self.tool_name!r} is "
                "called directly; use ToolChoice.required()"
            )
        return evolve(request, tools=(spec,))

    def _reject_direct(self, part: ResponsePart) -> ResponsePart:
        if not isinstance(part, ToolCall) or part.name == self.tool_name or part.rejection:
            return part
        reason = f"{part.name!r} cannot be called directly: call it in a program, with {self.tool_name!r}"
        return evolve(part, rejection=reason)
