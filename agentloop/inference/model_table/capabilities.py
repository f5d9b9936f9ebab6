"""What a model is able to do, by its name."""

from __future__ import annotations

from collections.abc import Iterable

from agentloop.inference.model_table.capability_row import Capabilities, CapabilityRow
from agentloop.inference.model_table.model_names import model_names
from agentloop.inference.model_table.rows import MODEL_ROWS, SERVICE_ROWS
from agentloop.inference.presets import PRESETS

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
