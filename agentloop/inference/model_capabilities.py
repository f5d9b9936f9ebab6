"""What a model is able to do, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from agentloop.inference.model_rows import MODEL_ROWS, SERVICE_ROWS, Capabilities, CapabilityRow
from agentloop.inference.presets import PRESETS

_VENDORS = re.compile(r"^(?:(?:[a-z-]+|[a-z]+\d+)\.)+(?=[a-z])(?!gguf|ggml|bin\b|q\d)")
"""What Amazon puts before a name: a region, a vendor; not a file's name before its kind."""
_POINT = re.compile(r"(?<=\d)p(?=\d)")
"""How Fireworks spells the point of a version."""


def model_names(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the names under which a model may be known, for each way to read its string; the likeliest first.

    What stands before the first colon is the provider when there is one of that name; else it may be the model and what
    follows a tag, as in Ollama's `qwen3:8b`, or the other way round, with a provider that is not known here.
    Each way gives the string as it is and, with and without the provider and the tag, the model without what is put
    before it: the path (`meta-llama/…`), the region and the vendor (`us.anthropic.…`), the mark of a tuned model (`ft:…`).

    Args:
        name: `provider:model`, or the model alone.
    """
    text = name.strip().lower()
    provider, colon, model = text.partition(":")
    if not colon:
        return (tuple(_spellings("", text)),)
    if provider in PRESETS:
        return (tuple(_spellings(provider, model)),)
    return tuple(_spellings("", text)), tuple(_spellings(provider, model))


def _spellings(provider: str, model: str) -> Iterator[str]:
    for one in dict.fromkeys((model, *_common(model))):
        yield one
        if provider:
            yield f"{provider}:{one}"


def _common(model: str) -> tuple[str, str]:
    """Return the common spelling of a model, with its tag and without."""
    last = model.removeprefix("ft:").rpartition("/")[2].replace("_", "-")
    last = _POINT.sub(".", _VENDORS.sub("", last))
    return last.replace(":", "-"), last.partition(":")[0]


UNKNOWN_MODEL = Capabilities("validated", streaming=True, parallel_tool_calls=False, structured_output=None)
"""What is taken for granted of a model that no row speaks of: that it writes text."""


def capabilities(name: str, *, wire_format: str = "", rows: Iterable[CapabilityRow] = ()) -> Capabilities:
    """Look up what a model is able to do.

    The first row that matches decides: first yours, then those of the models, then those of the services.

    Args:
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format by which it is reached; that of the provider when left out.
        rows: rows of your own.

    Returns:
        What is known of it, or `UNKNOWN_MODEL`.
    """
    wire_format = wire_format or _wire_format(name)
    readings = model_names(name)
    in_any_reading = tuple(one for names in readings for one in names)
    for table, ways in ((tuple(rows), (in_any_reading,)), (MODEL_ROWS, readings), (SERVICE_ROWS, readings)):
        for names in ways:
            for row in table:
                if row.matches(names, wire_format):
                    return row.capabilities
    return UNKNOWN_MODEL


def _wire_format(name: str) -> str:
    preset = PRESETS.get(name.partition(":")[0].strip().lower())
    return preset.wire_format if preset is not None else ""
