"""What a model is able to do, and a row of the table that tells it."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, get_args

from attrs import field, frozen
from attrs.validators import in_, min_len, optional

from agentloop.values.value import Value

ToolMode: TypeAlias = Literal["native", "structured", "validated", "parsed"]
"""How tools are offered and calls are read: the provider's tool API, a JSON schema for the answer, or text, with or without
asking again."""
StructuredOutput: TypeAlias = Literal["json_schema", "json_object"]
"""What the form of an answer can be constrained to: a schema, or no more than some JSON object."""


@frozen(eq=False, repr=False)
class Capabilities(Value):
    """What a model is able to do.

    Attributes:
        mode: the tool-calling mode that suits it.
        streaming: whether its answers can be taken while they are written.
        parallel_tool_calls: whether it makes several calls in one answer.
        structured_output: what the form of its answers can be constrained to; None when it cannot be.
    """

    mode: ToolMode = field(validator=in_(get_args(ToolMode)))
    streaming: bool = True
    parallel_tool_calls: bool = False
    structured_output: StructuredOutput | None = field(
        default=None, validator=optional(in_(get_args(StructuredOutput)))
    )


def _lower(pattern: str) -> str:
    return pattern.lower()


@frozen(eq=False, repr=False)
class CapabilityRow(Value):
    """What the models of some names are able to do.

    Attributes:
        pattern: names with `*`, `?` and `[…]`, several with `|` between them; one with a colon is of the form
            `provider:model`, one without speaks of the model alone. Case does not matter.
        capabilities: what they are able to do.
        wire_format: the wire format that they have to be reached by; any when empty.
    """

    pattern: str = field(converter=_lower, validator=min_len(1))
    capabilities: Capabilities
    wire_format: str = ""

    def matches(self, names: Iterable[str], wire_format: str = "") -> bool:
        """Say whether the row speaks of a model that has these names, in lower case; those with a colon name a provider too."""
        if self.wire_format and self.wire_format != wire_format:
            return False
        patterns = self.pattern.split("|")
        return any(
            (":" in name) == (":" in pattern) and fnmatchcase(name, pattern) for name in names for pattern in patterns
        )
