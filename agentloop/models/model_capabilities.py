"""Lookup of what a model can do, by its name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

from agentloop.models.model_rows import MODEL_ROWS, SERVICE_ROWS
from agentloop.models.presets import PRESETS
from agentloop.values.capabilities import Capabilities, CapabilityRow

UNKNOWN_MODEL = Capabilities("native", is_assumed=True)
"""The capabilities of a model that matches no row: it is assumed to have a tool API, until a request shows otherwise."""

_VENDOR_PREFIX = re.compile(r"^(?:(?:[a-z-]+|[a-z]+\d+)\.)+(?=[a-z])(?!gguf|ggml|bin\b|q\d)")
"""Matches Amazon's prefixes of region and vendor, but not the name of a file before its extension."""
_VERSION_POINT = re.compile(r"(?<=\d)p(?=\d)")
"""Matches the point of a version as Fireworks spells it."""


def capabilities(name: str, *, wire_format: str = "", rows: Iterable[CapabilityRow] = ()) -> Capabilities:
    """Return what a model can do.

    The first matching row decides, in this order: your rows, the rows of models, the rows of services.

    Args:
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format; by default, the provider's.
        rows: rows of your own.

    Returns:
        The capabilities of the row, or `UNKNOWN_MODEL`.
    """
    row, _ = find_row(name, wire_format=wire_format, rows=rows)
    return UNKNOWN_MODEL if row is None else row.capabilities


@lru_cache(maxsize=256)
def published_capabilities(provider: str, model: str, wire_format: str) -> Capabilities:
    """Return what a model can do, for the encoding of its requests.

    Args:
        provider: the name of the provider; may be empty.
        model: the provider's name for the model.
        wire_format: the name of the wire format.
    """
    return capabilities(f"{provider}:{model}" if provider else model, wire_format=wire_format)


def find_row(
    name: str, *, wire_format: str = "", rows: Iterable[CapabilityRow] = ()
) -> tuple[CapabilityRow | None, str]:
    """Return the row that decides what a model can do, and how it is known, as the end of a sentence.

    Args:
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format; by default, the provider's.
        rows: rows of your own.

    Returns:
        The row and why it applies; None for a model that matches no row.
    """
    # Some capabilities depend on the API, so that a row may be limited to a wire format.
    wire_format = wire_format or _wire_format(name)
    readings = model_names(name)
    all_names = tuple(alias for names in readings for alias in names)
    # Your own rows apply to every reading of the name; the published ones to the most likely reading first.
    tables = (
        (tuple(rows), (all_names,), "your row for {} names the model"),
        (MODEL_ROWS, readings, "the row for {} of the published models names the model"),
        (SERVICE_ROWS, readings, "no row names the model, and the row for {} names its service"),
    )
    for table, name_groups, reason in tables:
        for names in name_groups:
            for row in table:
                pattern = row.matching_pattern(names, wire_format)
                if pattern:
                    shown = f"{pattern} in {row.wire_format}" if row.wire_format else pattern
                    return row, reason.format(shown)
    return None, "no row names the model or its service"


@lru_cache(maxsize=256)
def service_capabilities(name: str, wire_format: str) -> Capabilities | None:
    """Return what the service of a model can do for any model, whatever is known of this one; None for an unknown service.

    Args:
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format.
    """
    row = first_row(SERVICE_ROWS, name, wire_format)
    return None if row is None else row.capabilities


def first_row(rows: Iterable[CapabilityRow], name: str, wire_format: str) -> CapabilityRow | None:
    """Return the first of some rows that matches a reading of a name; None if none does.

    Args:
        rows: the rows.
        name: `provider:model`, or the model alone.
        wire_format: the name of the wire format.
    """
    names = [alias for names in model_names(name) for alias in names]
    return next((row for row in rows if row.matches(names, wire_format)), None)


def model_names(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the names under which a model may be known, for each reading of the string, the most likely reading first.

    The text before the first colon is the provider if there is one with that name. Otherwise it may be the model, followed by
    a tag, as in Ollama's `qwen3:8b`, or an unknown provider.

    Each reading yields the model as written, and, with and without its tag, the model without its prefixes: the path
    (`meta-llama/…`), the region and the vendor (`us.anthropic.…`), the mark of a fine-tuned model (`ft:…`). All of these are
    yielded with and without the provider.

    Args:
        name: `provider:model`, or the model alone.
    """
    text = name.strip().lower()
    provider, colon, model = text.partition(":")
    if not colon:
        return (tuple(_spellings("", text)),)
    # A known provider leaves no doubt about the meaning of the colon.
    if provider in PRESETS:
        return (tuple(_spellings(provider, model)),)
    return tuple(_spellings("", text)), tuple(_spellings(provider, model))


def _spellings(provider: str, model: str) -> Iterator[str]:
    for spelling in dict.fromkeys((model, *_normalize(model))):
        yield spelling
        if provider:
            yield f"{provider}:{spelling}"


def _normalize(model: str) -> tuple[str, str]:
    """Return a model without its prefixes, with its tag and without."""
    base_name = model.removeprefix("ft:").rpartition("/")[2].replace("_", "-")
    base_name = _VERSION_POINT.sub(".", _VENDOR_PREFIX.sub("", base_name))
    # Ollama separates the size by a colon where other services use a dash: `qwen3:8b`, `qwen3-8b`.
    return base_name.replace(":", "-"), base_name.partition(":")[0]


def _wire_format(name: str) -> str:
    preset = PRESETS.get(name.partition(":")[0].strip().lower())
    return preset.wire_format if preset is not None else ""
