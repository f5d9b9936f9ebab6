"""Pictures in both directions: the question has one, and a tool returns one, which the model sees."""

from __future__ import annotations

import struct
import zlib

from agentloop import AgentLoop, Message, ScriptedInference, ToolCall, tool
from agentloop.values import Image, InferenceRequest


def draw(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    """Return a PNG in one color."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes(color) * width) * height
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@tool(effect="pure")
def paint(color: str) -> Image:
    """Paint a picture in a color."""
    return Image(data=draw(8, 8, {"red": (255, 0, 0), "blue": (0, 0, 255)}[color]), name=f"{color}.png")


def answer(request: InferenceRequest) -> str:
    """Stand for the model: say which pictures it was shown."""
    question, *later = request.messages
    shown = [part for part in question.parts if isinstance(part, Image)]
    painted = [
        part
        for message in later
        for exchange in message.exchanges
        for part in exchange.execution.content or ()
        if isinstance(part, Image)
    ]
    return ", ".join(f"{image.media_type} of {len(image.data or b'')} bytes" for image in (*shown, *painted))


if __name__ == "__main__":
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "paint", '{"color": "blue"}'), answer), tools=[paint])
    # The kind of a picture is read from its bytes; Image.from_path("photo.jpg") reads a file.
    question = Message.user("Paint this in blue:", Image(data=draw(8, 8, (255, 0, 0))))
    print(loop.run_sync(question))
