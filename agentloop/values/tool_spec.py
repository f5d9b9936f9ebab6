"""A tool as a model and an interceptor see it."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen

from agentloop.values.encode_once import EncodeOnce
from agentloop.values.json_value import JsonObject, freeze_object


class Effect(StrEnum):
    """What calling a tool does to the world, and so whether it may be called again.

    `PURE` changes nothing. `IDEMPOTENT` changes something, but twice with the same key is as once. `EFFECT`, the default,
    is run once and never repeated without being told to.
    """

    PURE = "pure"
    IDEMPOTENT = "idempotent"
    EFFECT = "effect"


@frozen(eq=False, repr=False)
class ToolSpec(EncodeOnce):
    """What a tool offers: the part of it that is a value.

    Attributes:
        name: the name by which a model calls it.
        description: what it does and when to use it.
        parameters: a JSON Schema of type object.
        effect: what calling it does to the world; a model is not shown this.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect = field(default=Effect.EFFECT, converter=Effect)
