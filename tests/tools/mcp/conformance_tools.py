"""The tools that the conformance suite expects of a server; run by `agentloop mcp serve`."""

from __future__ import annotations

from agentloop import tool
from agentloop.contracts import ToolContext
from agentloop.values import Audio, Document, Image, Text

PNG = b"\x89PNG\r\n\x1a\n"


@tool(effect="pure")
def test_simple_text() -> str:
    """Return a text."""
    return "This is a simple text response for testing."


@tool(effect="pure")
def test_image_content() -> Image:
    """Return a picture."""
    return Image(data=PNG, media_type="image/png")


@tool(effect="pure")
def test_audio_content() -> Audio:
    """Return a sound."""
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
    """Tell progress."""
    for done in (0, 50, 100):
        context.progress({"progress": done, "total": 100})
    return "done"
