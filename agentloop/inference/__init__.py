"""Asking models: configuration, the HTTP client, wire formats, and models that follow a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.inference.config import LLMConfig as LLMConfig
    from agentloop.inference.fallback import FallbackInference as FallbackInference
    from agentloop.inference.foreign_history import export_history as export_history
    from agentloop.inference.foreign_history import import_history as import_history
    from agentloop.inference.http_inference import HttpInference as HttpInference
    from agentloop.inference.model_capabilities import UNKNOWN_MODEL as UNKNOWN_MODEL
    from agentloop.inference.model_capabilities import capabilities as capabilities
    from agentloop.inference.model_rows import Capabilities as Capabilities
    from agentloop.inference.model_rows import CapabilityRow as CapabilityRow
    from agentloop.inference.model_rows import StructuredOutput as StructuredOutput
    from agentloop.inference.model_rows import ToolMode as ToolMode
    from agentloop.inference.presets import PRESETS as PRESETS
    from agentloop.inference.presets import Preset as Preset
    from agentloop.inference.presets import Quirks as Quirks
    from agentloop.inference.recording import RecordingInference as RecordingInference
    from agentloop.inference.recording import ReplayInference as ReplayInference
    from agentloop.inference.scripted import ScriptedInference as ScriptedInference
    from agentloop.inference.wire_formats.wire_format import EncodedRequest as EncodedRequest
    from agentloop.inference.wire_formats.wire_format import WireFormat as WireFormat
    from agentloop.inference.wire_formats.wire_format import wire_format as wire_format
    from agentloop.values.secrets import Secret as Secret
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.inference.config": "LLMConfig",
            "agentloop.inference.fallback": "FallbackInference",
            "agentloop.inference.foreign_history": "export_history import_history",
            "agentloop.inference.http_inference": "HttpInference",
            "agentloop.inference.model_capabilities": "UNKNOWN_MODEL capabilities",
            "agentloop.inference.model_rows": "Capabilities CapabilityRow StructuredOutput ToolMode",
            "agentloop.inference.presets": "PRESETS Preset Quirks",
            "agentloop.inference.recording": "RecordingInference ReplayInference",
            "agentloop.inference.scripted": "ScriptedInference",
            "agentloop.values.secrets": "Secret",
            "agentloop.inference.wire_formats.wire_format": "EncodedRequest WireFormat wire_format",
        },
    )
