"""Tools: functions and classes that a model can call, their schemas and their validation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.tools.check import ToolProblems as ToolProblems
    from agentloop.tools.check import check_tools as check_tools
    from agentloop.tools.decorator import tool as tool
    from agentloop.tools.ensembles.ensemble import Ensemble as Ensemble
    from agentloop.tools.ensembles.ensemble import load_ensembles as load_ensembles
    from agentloop.tools.function_tool import FunctionTool as FunctionTool
    from agentloop.tools.function_tool import PlainFunctionTool as PlainFunctionTool
    from agentloop.tools.schema import json_schema as json_schema
    from agentloop.tools.typed_tool import TypedTool as TypedTool
    from agentloop.tools.validation import SchemaValidator as SchemaValidator
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.tools.check": "ToolProblems check_tools",
            "agentloop.tools.decorator": "tool",
            "agentloop.tools.ensembles.ensemble": "Ensemble load_ensembles",
            "agentloop.tools.function_tool": "FunctionTool PlainFunctionTool",
            "agentloop.tools.schema": "json_schema",
            "agentloop.tools.typed_tool": "TypedTool",
            "agentloop.tools.validation": "SchemaValidator",
        },
    )
