"""The parts of messages and responses, except tool calls."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import ClassVar, Self

from attrs import field, frozen

from agentloop.errors.kinds import ConfigurationError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.value import Declared, Value, check_types


@frozen(eq=False, repr=False)
class Text(Value):
    """Text.

    Attributes:
        text: the text.
        provider_data: data that a wire format must send back with this part, such as a signature or an id, by the name of
            the wire format.
    """

    text: str
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class Reasoning(Value):
    """The reasoning of a model before it answered or called a tool.

    Attributes:
        text: the reasoning, as far as the provider shows it; may be empty if only an encrypted form exists.
        provider_data: signature or encrypted content that a wire format must send back, by the name of the wire format.
    """

    text: str
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)

    __attrs_post_init__ = check_types


@frozen(eq=False, repr=False)
class ProviderPart(Value):
    """An opaque part of a provider's response, sent back to that provider and left out for all others.

    Attributes:
        wire_format: the name of its wire format, such as `anthropic-messages`.
        payload: the part as JSON.
    """

    wire_format: str
    payload: JsonValue = field(converter=freeze)

    __attrs_post_init__ = check_types


_SIGNATURES: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"{\\rtf", "application/rtf"),
    (b"PK\x03\x04", "application/zip"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
)
"""How the bytes of a media type begin."""
_BOXES: Mapping[bytes, Mapping[bytes, str]] = {
    b"RIFF": {b"WEBP": "image/webp", b"WAVE": "audio/wav"},
    b"FORM": {b"AIFF": "audio/aiff", b"AIFC": "audio/aiff"},
}
"""The media types of containers whose bytes 8 to 12 name what they contain, by their first four bytes."""
_BRANDS: Mapping[bytes, str] = {
    **dict.fromkeys((b"avif", b"avis"), "image/avif"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"mif1", b"msf1"), "image/heif"),
    **dict.fromkeys((b"M4A ", b"M4B "), "audio/mp4"),
}
"""The media types of ISO base media files (bytes 4 to 8 are `ftyp`), by their major brand."""
_OFFICE_PARTS: Mapping[bytes, str] = {
    b"word/document.xml": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    b"xl/workbook.xml": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    b"ppt/presentation.xml": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
}
"""The media types of ZIP archives, by a file in them."""
_BITMAP_HEADERS = frozenset({12, 40, 52, 56, 64, 108, 124})
"""The sizes of the second header of a BMP file; its two first bytes alone begin many texts."""
_EBML, _WEBM_WITHIN, _SVG_WITHIN = b"\x1aE\xdf\xa3", 64, 1_000
_MPEG_SYNC, _MPEG_LAYER_3, _ADTS = 0xE0, 0x02, 0xF0
_ZIP = "application/zip"


def detect_media_type(data: bytes) -> str:
    """Return the MIME type of content by its first bytes; empty for bytes of no known kind.

    Known are the usual images (PNG, JPEG, GIF, WebP, AVIF, HEIC, BMP, TIFF, SVG), recordings (WAV, MP3, AAC, FLAC, Ogg, M4A,
    AIFF, WebM) and documents (PDF, RTF, the XML formats of Office, ZIP).
    """
    for signature, media_type in _SIGNATURES:
        if data.startswith(signature):
            return _archive_type(data) if media_type == _ZIP else media_type
    if data[:4] in _BOXES:
        return _BOXES[data[:4]].get(data[8:12], "")
    if data[4:8] == b"ftyp":
        return _BRANDS.get(data[8:12], "")
    if data[:2] == b"BM" and int.from_bytes(data[14:18], "little") in _BITMAP_HEADERS:
        return "image/bmp"
    if data.startswith(_EBML) and b"webm" in data[:_WEBM_WITHIN]:
        return "audio/webm"
    return _frame_type(data) or _markup_type(data)


def _archive_type(data: bytes) -> str:
    return next((media_type for name, media_type in _OFFICE_PARTS.items() if name in data), _ZIP)


def _frame_type(data: bytes) -> str:
    """Return the type of audio without a header, which begins with a frame; its first eleven bits are set."""
    if data[:1] != b"\xff" or len(data) < 2 or data[1] & _MPEG_SYNC != _MPEG_SYNC:  # noqa: PLR2004  # two bytes
        return ""
    if data[1] & 0xF6 == _ADTS:
        return "audio/aac"
    return "audio/mpeg" if data[1] & 0x06 == _MPEG_LAYER_3 else ""


def _markup_type(data: bytes) -> str:
    head = data[:_SVG_WITHIN].removeprefix(b"\xef\xbb\xbf").lstrip()
    return "image/svg+xml" if head.startswith((b"<svg", b"<?xml", b"<!DOCTYPE svg")) and b"<svg" in head else ""


URL_SCHEMES: tuple[str, ...] = ("https", "http", "s3", "gs")
"""The schemes of addresses of media: those of the web, and of the stores of providers."""


def find_url_problem(url: str) -> str:
    """Return why an address cannot be that of media; empty if it can.

    The provider, or a server of models on this machine, fetches what it names, and some pages show it as a link: `file:` would be a
    file of that machine, and `javascript:` code.
    """
    scheme, colon, rest = url.partition("://")
    if colon and scheme.lower() in URL_SCHEMES and rest and url.isprintable() and " " not in url:
        return ""
    if url.lstrip().lower().startswith("data:"):
        return "an address data:… is content: decode it, and pass it as data with its media_type"
    schemes = ", ".join([f"{scheme}://" for scheme in URL_SCHEMES])
    return f"the address of media begins with one of {schemes}, and has no spaces; {url!r:.100} does not"


def _as_bytes(data: bytes | bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


@frozen(eq=False, repr=False, kw_only=True)
class Media(Declared):
    """Content that is not text, by value or by reference; exactly one of `data`, `url` and `file_id` is set.

    Attributes:
        media_type: the MIME type, such as `image/png`; by default that of the content, by its first bytes. May be empty for a
            reference.
        data: the content.
        url: the address from which the provider can fetch it, with a scheme of `URL_SCHEMES`.
        file_id: the provider's id of an uploaded file.
        name: a file name for the model to see; may be empty.
        provider_data: data that a wire format must send back with this part, by the name of the wire format.

    Raises:
        ConfigurationError: if not exactly one of `data`, `url` and `file_id` is set, if `url` has another scheme, or if `data`
            without a `media_type` is of no known kind or belongs to another class.
    """

    _family: ClassVar[str] = ""  # how the media types of the class begin
    _example: ClassVar[str] = "application/pdf"

    media_type: str = ""
    data: bytes | None = field(
        default=None, converter=_as_bytes, repr=lambda data: f"<{len(data)} bytes>" if data else "None"
    )
    url: str | None = None
    file_id: str | None = None
    name: str = ""
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        sources = [name for name in ("data", "url", "file_id") if getattr(self, name) is not None]
        if len(sources) != 1:
            actual = " and ".join(sources) if sources else "none"
            raise ConfigurationError(
                f"{type(self).__name__} needs exactly one of data, url and file_id; given: {actual}"
            )
        if self.data is not None and not self.media_type:
            # The only change to a value after its creation: the type is a function of the content.
            object.__setattr__(self, "media_type", self._type_of(self.data))

    def check_declaration(self) -> None:
        """Check the address."""
        if self.url is not None and (problem := find_url_problem(self.url)):
            raise ConfigurationError(f"{type(self).__name__}: {problem}")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], media_type: str = "") -> Self:
        """Read the content from a file.

        Args:
            path: the file.
            media_type: its MIME type; by default that of the content, by its first bytes, else guessed from the name of the
                file.

        Raises:
            ConfigurationError: if the MIME type cannot be guessed, or the guessed one belongs to another class.
            OSError: if the file cannot be read.
        """
        name = os.path.basename(path)  # noqa: PTH119  # pathlib takes another 2 ms
        with open(path, "rb") as file:  # noqa: PTH123  # as above
            data = file.read()
        detected = detect_media_type(data)
        # Many formats are ZIP archives, which their names tell apart.
        is_certain = bool(media_type) or detected not in {"", _ZIP}
        guessed = media_type or (detected if is_certain else _type_by_name(name) or detected)
        if not guessed:
            raise ConfigurationError(f"the media type of {name} cannot be guessed from its name; pass media_type")
        if not media_type and not cls._includes(guessed, is_certain=is_certain):
            expected = f"{cls._family}…" if cls._family else "that of a document"
            raise ConfigurationError(
                f"{name} has the media type {guessed}, not {expected}; use {_class_name(guessed)}, or pass media_type if it is "
                "wrong"
            )
        return cls(media_type=guessed, data=data, name=name)

    @classmethod
    def _includes(cls, media_type: str, *, is_certain: bool) -> bool:
        """Return whether content of this type belongs to the class; a name alone rules nothing out of documents."""
        return media_type.startswith(cls._family) if cls._family or not is_certain else _is_document(media_type)

    @classmethod
    def _type_of(cls, data: bytes) -> str:
        media_type = detect_media_type(data)
        if not media_type:
            raise ConfigurationError(
                f"{cls.__name__} with data needs a media_type such as {cls._example!r}: its bytes are of no known kind"
            )
        if not cls._includes(media_type, is_certain=True):
            raise ConfigurationError(
                f"the data of this {cls.__name__} is {media_type}; use {_class_name(media_type)}, or pass media_type if that is "
                "wrong"
            )
        return media_type


def _type_by_name(name: str) -> str:
    from mimetypes import guess_type  # noqa: PLC0415  # takes 3 ms to load

    return guess_type(name)[0] or ""


def _is_document(media_type: str) -> bool:
    return not media_type.startswith(("image/", "audio/"))


def _class_name(media_type: str) -> str:
    return "Document" if _is_document(media_type) else "Image" if media_type.startswith("image/") else "Audio"


class Image(Media):
    """An image."""

    __slots__ = ()
    _family: ClassVar[str] = "image/"
    _example: ClassVar[str] = "image/png"


class Audio(Media):
    """An audio recording."""

    __slots__ = ()
    _family: ClassVar[str] = "audio/"
    _example: ClassVar[str] = "audio/wav"


class Document(Media):
    """A document such as a PDF."""

    __slots__ = ()
