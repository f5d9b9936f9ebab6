"""The parts of messages, except calls."""

from __future__ import annotations

import io
import wave
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError, InvalidDocument, NotJson
from agentloop.values.messages import Message
from agentloop.values.parts import Audio, Document, Image, Media, ProviderPart, Reasoning, Text, detect_media_type
from agentloop.values.serialization import from_plain, to_plain


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


@pytest.mark.parametrize("kind", [Image, Audio, Document])
@pytest.mark.parametrize(
    "url",
    ["https://example.com/a%20b.png", "HTTP://localhost:8080/x", "s3://bucket/a.png", "gs://bucket/a.png"],
)
def test_media_are_at_addresses_that_a_provider_fetches(kind: type[Media], url: str) -> None:
    """Those are addresses of the web, and of the stores of providers."""
    assert kind(url=url).url == url


NO_ADDRESSES = [
    "file:///etc/passwd",
    "FILE:///etc/passwd",
    "file:/etc/passwd",
    "file:etc/passwd",
    " file:///etc/passwd",
    "fi\tle:///etc/passwd",
    "\x00file:///etc/passwd",
    "view-source:file:///etc/passwd",
    "javascript:alert(1)",
    "JaVaScRiPt://%0aalert(1)",
    "java\nscript:alert(1)",
    "vbscript:x",
    "data:text/html,<script>",
    "data:image/png;base64,aGk=",
    "blob:https://example.com/x",
    "about:blank",
    "chrome://settings",
    "ftp://example.com/a.png",
    "gopher://127.0.0.1:6379/_x",
    "jar:https://example.com!/x",
    "smb://host/share",
    "\\\\host\\share\\a.png",
    "//example.com/a.png",
    "/etc/passwd",
    "C:\\a.png",
    "~/a.png",
    "a.png",
    "https:",
    "https://",
    "https:/example.com/a.png",
    "https://example.com/a b.png",
    "https://example.com/\r\nhost: x",
    "\u202ehttps://example.com/a.png",
    "",
]


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_no_other_address_can_be_given(url: str) -> None:
    """A file of the machine that runs the model, code for the page that shows a link, and a path are refused with what to do."""
    with pytest.raises(ConfigurationError, match=r"begins with one of https://|pass it as data") as caught:
        Message.user("Look!", Image(url=url))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("url", NO_ADDRESSES)
def test_media_that_were_recorded_with_another_address_stay_readable(url: str) -> None:
    """A journal of an earlier version is read as it was written, and written as it was read."""
    plain = {"role": "user", "parts": [{"type": "image", "url": url, "name": "a", "media_type": "image/png"}]}
    message = from_plain(plain, Message)
    (part,) = message.parts
    assert isinstance(part, Image)
    assert (part.url, part.file_id, part.data, part.name) == (url, None, None, "a")
    assert to_plain(message) == plain
    assert from_plain(to_plain(message), Message) == message
    with pytest.raises(InvalidDocument, match="exactly one of data, url and file_id"):
        from_plain({"url": url, "file_id": "f"}, Image)


def test_media_by_value_needs_a_media_type() -> None:
    """A provider cannot be sent bytes of an unknown type."""
    with pytest.raises(ConfigurationError, match="Image with data needs a media_type such as 'image/png'"):
        Image(data=b"x")


def _wav() -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as recording:
        recording.setnchannels(1)
        recording.setsampwidth(2)
        recording.setframerate(8_000)
        recording.writeframes(b"\0\0")
    return buffer.getvalue()


def _docx() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("word/document.xml", "<document/>")
    return buffer.getvalue()


_CONTENTS: list[tuple[type[Media], bytes, str]] = [
    (Image, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "image/png"),
    (Image, b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg"),
    (Image, b"GIF89a\1\0\1\0", "image/gif"),
    (Image, b"RIFF\x24\0\0\0WEBPVP8 ", "image/webp"),
    (Image, b"\0\0\0\x20ftypavif", "image/avif"),
    (Image, b"\0\0\0\x18ftypheic", "image/heic"),
    (Image, b"BM\x46\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0", "image/bmp"),
    (Image, b"II*\0\x08\0\0\0", "image/tiff"),
    (Image, b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "image/svg+xml"),
    (Audio, _wav(), "audio/wav"),
    (Audio, b"ID3\x04\0\0", "audio/mpeg"),
    (Audio, b"\xff\xfb\x90\x64", "audio/mpeg"),
    (Audio, b"\xff\xf1\x50\x80", "audio/aac"),
    (Audio, b"fLaC\0\0\0\x22", "audio/flac"),
    (Audio, b"OggS\0\2", "audio/ogg"),
    (Audio, b"\0\0\0\x1cftypM4A ", "audio/mp4"),
    (Audio, b"\x1aE\xdf\xa3\x9fB\x86\x81\1B\xf7\x81\1B\xf2\x81\4B\xf3\x81\x08B\x82\x84webm", "audio/webm"),
    (Document, b"%PDF-1.7\n", "application/pdf"),
    (Document, _docx(), "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    (Document, b"{\\rtf1", "application/rtf"),
]


@pytest.mark.parametrize(("kind", "data", "media_type"), _CONTENTS)
def test_media_tells_its_type_from_its_bytes(kind: type[Media], data: bytes, media_type: str) -> None:
    """The type is that of the first bytes, for the class that they belong to and no other."""
    assert kind(data=data).media_type == media_type
    assert kind(data=data, media_type="x/y").media_type == "x/y"
    for other in {Image, Audio, Document} - {kind}:
        with pytest.raises(
            ConfigurationError, match=rf"^the data of this {other.__name__} is .*; use {kind.__name__},"
        ):
            other(data=data)


@given(st.sampled_from(_CONTENTS), st.integers(0, 30), st.binary(max_size=20))
def test_any_bytes_are_detected_or_refused(known: tuple[type[Media], bytes, str], kept: int, rest: bytes) -> None:
    """Cut and foreign bytes have a type of the class, or raise a `ConfigurationError`."""
    kind, data, _ = known
    for content in (data[:kept] + rest, rest):
        try:
            media_type = kind(data=content).media_type
        except ConfigurationError:
            continue
        assert media_type == detect_media_type(content) != ""


@pytest.mark.parametrize(
    "text", [b"", b"BMW is a maker of cars", b"<?xml version='1.0'?><feed/>", b"\xff\xfe\0", b"ID"]
)
def test_bytes_of_no_known_kind_have_no_type(text: bytes) -> None:
    """Text that begins like a signature is not taken for one."""
    assert not detect_media_type(text)


def test_a_picture_is_sent_with_a_message() -> None:
    """A message takes a picture beside its text."""
    message = Message.user("What is this?", Image(data=_CONTENTS[0][1]))
    assert [type(part) for part in message.parts] == [Text, Image]


def test_the_bytes_of_a_file_outweigh_its_name(tmp_path: Path) -> None:
    """A PNG called `.jpg` is a PNG, a PDF called `.png` is no image, and an archive is what its name says."""
    path = tmp_path / "photo.jpg"
    path.write_bytes(_CONTENTS[0][1])
    assert Image.from_path(path).media_type == "image/png"
    with pytest.raises(
        ConfigurationError, match=r"^photo\.jpg has the media type image/png, not that of a document; use Image"
    ):
        Document.from_path(path)
    path.write_bytes(b"%PDF-1.7")
    with pytest.raises(ConfigurationError, match=r"has the media type application/pdf, not image/…; use Document"):
        Image.from_path(path)
    book = tmp_path / "book.epub"
    book.write_bytes(b"PK\x03\x04mimetype")
    assert Document.from_path(book).media_type == "application/epub+zip"


def test_media_copies_mutable_bytes() -> None:
    """A buffer is copied."""
    buffer = bytearray(b"abc")
    image = Image(media_type="image/png", data=buffer)
    buffer[0] = 0
    assert image.data == b"abc"


def test_a_repr_of_media_does_not_show_its_bytes() -> None:
    """The repr of an image shows its size, not its bytes."""
    assert "data=<5 bytes>" in repr(Image(media_type="image/png", data=b"abcde"))
    assert "data=None" in repr(Image(url="https://a/u"))


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
    assert Image(url="https://a/u") != Document(url="https://a/u")
    assert Image(url="https://a/u") == Image(url="https://a/u")
