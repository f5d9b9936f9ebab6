"""What the conformance suite expects of a server; run by `agentloop mcp serve`."""

from __future__ import annotations

import logging
from typing import Any

from agentloop import tool
from agentloop.contracts import Tool, ToolContext
from agentloop.mcp import prompt, resource
from agentloop.values import Audio, Document, Image, Text

PNG = b"\x89PNG\r\n\x1a\n"


@tool(effect="pure")
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(effect="pure")
def test_image_content() -> Image:
    """Return an image."""
    return Image(data=PNG, media_type="image/png")


@tool(effect="pure")
def test_audio_content() -> Audio:
    """Return audio."""
    return Audio(data=b"RIFF", media_type="audio/wav")


@tool(effect="pure")
def test_embedded_resource() -> Document:
    """Return a document."""
    return Document(data=b"This is an embedded resource content.", media_type="text/plain", name="embedded")


@tool(effect="pure")
def test_multiple_content_types() -> list[Text | Image | Document]:
    """Return parts of several kinds."""
    document = Document(data=b'{"test": "data"}', media_type="application/json", name="mixed")
    return [Text("Multiple content types test:"), Image(data=PNG, media_type="image/png"), document]


@tool
def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


@tool
def test_tool_with_progress(context: ToolContext) -> str:
    """Report progress."""
    for done in (0, 50, 100):
        context.progress({"progress": done, "total": 100})
    return "done"


@tool
def test_logging_tool() -> str:
    """Write to the log of the program, which clients do not see."""
    logging.getLogger(__name__).warning("this is not for the client")
    return "logged"


@resource("test://static-text", media_type="text/plain")
def static_text() -> str:
    """A text."""
    return "This is the content of the static text resource."


@resource("test://static-binary", media_type="image/png")
def static_binary() -> bytes:
    """An image."""
    return PNG


@resource("test://template/{id}/data")
def template(id: str) -> dict[str, Any]:  # noqa: A002  # the suite's name
    """Data for an id."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


@prompt
def test_simple_prompt() -> str:
    """A text."""
    return "This is a simple prompt for testing."


@prompt
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """A text with its arguments.

    Args:
        arg1: the first.
        arg2: the second.
    """
    return f"Prompt with arguments: arg1={arg1!r}, arg2={arg2!r}"


@prompt
async def test_prompt_with_embedded_resource(resourceUri: str) -> list[Document | str]:  # noqa: N803  # the suite's name
    """A document."""
    document = Document(data=b"Embedded resource content for testing.", media_type="text/plain", name=resourceUri)
    return [document, "Please process the embedded resource above."]


@prompt
def test_prompt_with_image() -> list[Image | str]:
    """An image."""
    return [Image(data=PNG, media_type="image/png"), "Please analyze the image above."]


class SchemaTool(Tool):
    """Has a schema with many keywords."""

    name = "json_schema_2020_12_tool"
    description = "Tool with JSON Schema 2020-12 features"
    parameters = {  # noqa: RUF012  # a constant
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return arguments


class HeaderTool(Tool):
    """Has a parameter that clients send as a header too."""

    name = "in_region"
    description = "Do something in a region."
    parameters = {  # noqa: RUF012  # a constant
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
        "required": ["region"],
    }

    async def use(self, *_: Any, **arguments: Any) -> Any:
        return arguments


schema_tool = SchemaTool()
header_tool = HeaderTool()
