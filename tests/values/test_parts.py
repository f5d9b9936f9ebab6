"""The parts of messages, except calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import ConfigurationError, NotJson
from agentloop.values.parts import Audio, Document, Image, Media, ProviderPart, Reasoning, Text


@pytest.mark.parametrize("kind", [Image, Audio, Document])
def test_media_needs_exactly_one_source(kind: type[Media]) -> None:
    """Content is set by value, by URL or by id; the error distinguishes none and several."""
    assert kind(url="https://example.com/x").url == "https://example.com/x"
    assert kind(file_id="file_1").file_id == "file_1"
    assert kind(media_type="image/png", data=b"").data == b""
    with pytest.raises(ConfigurationError, match=rf"^{kind.__name__} needs exactly one .* given: none$"):
        kind(media_type="image/png")
    with pytest.raises(ConfigurationError, match="given: data and url"):
        kind(media_type="image/png", data=b"x", url="https://example.com/x")


def test_media_by_value_needs_a_media_type() -> None:
    """A provider cannot be sent bytes of an unknown type."""
    with pytest.raises(ConfigurationError, match="Image with data needs a media_type such as 'image/png'"):
        Image(data=b"x")


def test_media_copies_mutable_bytes() -> None:
    """A buffer is copied."""
    buffer = bytearray(b"abc")
    image = Image(media_type="image/png", data=buffer)
    buffer[0] = 0
    assert image.data == b"abc"


def test_a_repr_of_media_does_not_show_its_bytes() -> None:
    """The repr of an image shows its size, not its bytes."""
    assert "data=<5 bytes>" in repr(Image(media_type="image/png", data=b"abcde"))
    assert "data=None" in repr(Image(url="u"))


@pytest.mark.parametrize(
    ("kind", "name", "media_type"),
    [(Image, "a.png", "image/png"), (Audio, "a.mp3", "audio/mpeg"), (Document, "a b.pdf", "application/pdf")],
)
def test_media_is_read_from_a_file(tmp_path: Path, kind: type[Media], name: str, media_type: str) -> None:
    """The media type is guessed from the file name, which becomes the name."""
    path = tmp_path / name
    path.write_bytes(b"content")
    for given_path in (path, str(path)):
        assert kind.from_path(given_path) == kind(media_type=media_type, data=b"content", name=name)
    assert kind.from_path(path, "x/y").media_type == "x/y"


def test_a_file_of_an_unknown_kind_needs_its_type(tmp_path: Path) -> None:
    """An unknown media type has to be passed; a missing file raises an OSError."""
    path = tmp_path / "picture.unknownkind"
    path.write_bytes(b"content")
    with pytest.raises(
        ConfigurationError, match=r"picture\.unknownkind cannot be guessed from its name; pass media_type"
    ):
        Image.from_path(path)
    with pytest.raises(FileNotFoundError):
        Image.from_path(tmp_path / "absent.png")


@pytest.mark.parametrize(
    "part",
    [Text("x", provider_data={"a": [1]}), Reasoning("x", provider_data={"a": [1]}), ProviderPart("f", {"a": [1]})],
)
def test_provider_data_is_immutable_json(part: Any) -> None:
    """The provider data of a part is immutable JSON."""
    held = part.payload if isinstance(part, ProviderPart) else part.provider_data
    assert held == {"a": (1,)}
    hash(part)


def test_provider_data_that_is_not_json_is_refused() -> None:
    """A part can always be stored."""
    with pytest.raises(NotJson):
        Text("x", provider_data={"a": {1}})
    with pytest.raises(NotJson):
        ProviderPart("f", object())


def test_parts_of_different_kinds_are_different() -> None:
    """Text is not reasoning, and a picture is not a document."""
    assert Text("x") != Reasoning("x")
    assert Image(url="u") != Document(url="u")
    assert Image(url="u") == Image(url="u")
