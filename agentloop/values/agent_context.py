"""What a model may see."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve, field, frozen

from agentloop.values.inference_request import ResponseFormat
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.message import Message, as_messages
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class AgentContext(Value):
    """What a model may see of an agent, and metadata that travels with it.

    Attributes:
        system_prompt: instructions that stand before the conversation.
        messages: the conversation, complete; a compiler decides how much of it a model sees.
        metadata: JSON of yours; the model never sees it.
        response_format: the form that final answers have to have; None for free text.
    """

    system_prompt: str = ""
    messages: tuple[Message, ...] = field(default=(), converter=as_messages)
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    response_format: ResponseFormat | None = None

    def with_system_prompt(self, system_prompt: str) -> AgentContext:
        """Return the context with another system prompt."""
        return evolve(self, system_prompt=system_prompt)

    def with_message(self, message: Message) -> AgentContext:
        """Return the context with one more message at the end."""
        return AgentContext(self.system_prompt, (*self.messages, message), self.metadata, self.response_format)

    def with_messages(self, messages: Iterable[Message]) -> AgentContext:
        """Return the context with another conversation."""
        return evolve(self, messages=messages)

    def with_metadata(self, **entries: object) -> AgentContext:
        """Return the context with these entries of metadata added or replaced."""
        return evolve(self, metadata=self.metadata.plus(**entries))

    def with_response_format(self, response_format: ResponseFormat | None) -> AgentContext:
        """Return the context with another form for final answers."""
        return evolve(self, response_format=response_format)
