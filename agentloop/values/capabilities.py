"""What models can do, and rows that say it of families of models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final, Literal, TypeAlias, get_args

from attrs import field, frozen
from attrs.validators import min_len, optional

from agentloop.values.value import Value, one_of

ToolMode: TypeAlias = Literal["native", "structured", "validated", "parsed"]
"""How tools are offered and calls are read: by the provider's tool API, by a JSON schema for the response, or as text, with or
without another request when the calls are invalid."""


StructuredOutput: TypeAlias = Literal["json_schema", "json_object"]
"""What a response can be constrained to: a schema, or any JSON object."""


@frozen(eq=False, repr=False)
class Capabilities(Value):
    """What a model can do.

    Attributes:
        mode: the recommended tool-calling mode.
        streaming: whether its responses can be streamed.
        parallel_tool_calls: whether it can make several calls in one response.
        structured_output: what its responses can be constrained to; None for nothing.
        is_assumed: whether the mode is an assumption, because only the service is known. With the mode `auto`, an execution
            changes an assumed `native` to `validated` when the service or the model shows that it has no tool API.
        forced_calls: whether a call can be forced; where it cannot, a tool choice that forces one is sent as `auto`.
        optional_reasoning: whether it can be asked not to reason.
        bound_reasoning: whether the Messages API accepts its reasoning only behind what preceded it when it was written.
        system_messages: whether the Messages API accepts messages of the system within the conversation for it.
        signed_calls: whether Gemini's API refuses calls without a signature for it.
    """

    mode: ToolMode = field(validator=one_of(get_args(ToolMode)))
    streaming: bool = True
    parallel_tool_calls: bool = False
    structured_output: StructuredOutput | None = field(
        default=None, validator=optional(one_of(get_args(StructuredOutput)))
    )
    is_assumed: bool = False
    forced_calls: bool = field(default=True, kw_only=True)
    optional_reasoning: bool = field(default=True, kw_only=True)
    bound_reasoning: bool = field(default=False, kw_only=True)
    system_messages: bool = field(default=False, kw_only=True)
    signed_calls: bool = field(default=False, kw_only=True)


def _lower(pattern: str) -> str:
    return pattern.lower()


@frozen(eq=False, repr=False)
class CapabilityRow(Value):
    """The capabilities of the models whose names match a pattern.

    Attributes:
        pattern: alternatives separated by `|`, with the wildcards `*`, `?` and `[…]`. An alternative with a colon has the
            form `provider:model`, one without a colon matches the model alone. Case is ignored.
        capabilities: what these models can do.
        wire_format: the wire format that the row is limited to; empty for all.
    """

    pattern: str = field(converter=_lower, validator=min_len(1))
    capabilities: Capabilities
    wire_format: str = ""

    def matches(self, names: Iterable[str], wire_format: str = "") -> bool:
        """Return whether the row applies to a model.

        Args:
            names: the names of the model in lower case, as `model` or `provider:model`.
            wire_format: the name of its wire format.
        """
        return bool(self.matching_pattern(names, wire_format))

    def matching_pattern(self, names: Iterable[str], wire_format: str = "") -> str:
        """Return the alternative of the pattern that matches a model; empty if the row does not apply to it.

        Args:
            names: the names of the model in lower case, as `model` or `provider:model`.
            wire_format: the name of its wire format.
        """
        if self.wire_format and self.wire_format != wire_format:
            return ""
        # A pattern with a provider matches names with a provider only, and a pattern without one the others.
        patterns = self.pattern.split("|")
        found = (
            pattern
            for name in names
            for pattern in patterns
            if (":" in name) == (":" in pattern) and _matches(name, pattern)
        )
        return next(found, "")


_LITERAL_START: Final = re.compile(r"[^*?\[]*")


def _matches(name: str, pattern: str) -> bool:
    # The rows have three hundred patterns, and compiling one takes longer than all these comparisons.
    literal = _LITERAL_START.match(pattern)
    return (literal is None or name.startswith(literal[0])) and fnmatchcase(name, pattern)
