"""The parts of messages and responses, except tool calls."""

from __future__ import annotations

import os
from typing import ClassVar, Self

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.value import Value, check_types


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


def _as_bytes(data: bytes | bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


@frozen(eq=False, repr=False, kw_only=True)
class Media(Value):
    """Content that is not text, by value or by reference; exactly one of `data`, `url` and `file_id` is set.

    Attributes:
        media_type: the MIME type, such as `image/png`; may be empty for a reference.
        data: the content.
        url: the address from which the provider can fetch it.
        file_id: the provider's id of an uploaded file.
        name: a file name for the model to see; may be empty.
        provider_data: data that a wire format must send back with this part, by the name of the wire format.

    Raises:
        ConfigurationError: if not exactly one of `data`, `url` and `file_id` is set, or `data` has no `media_type`.
    """

    _family: ClassVar[str] = ""  # how the media types of the class begin

    media_type: str = ""
    data: bytes | None = field(
        default=None, converter=_as_bytes, repr=lambda data: f"<{len(data)} bytes>" if data else "None"
    )
    url: str | None = None
    file_id: str | None = None
    name: str = ""
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        check_types(self)
        sources = [name for name in ("data", "url", "file_id") if getattr(self, name) is not None]
        if len(sources) != 1:
            actual = " and ".join(sources) if sources else "none"
            raise ConfigurationError(
                f"{type(self).__name__} needs exactly one of data, url and file_id; given: {actual}"
            )
        if self.data is not None and not self.media_type:
            raise ConfigurationError(f"{type(self).__name__} with data needs a media_type such as 'image/png'")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], media_type: str = "") -> Self:
        """Read the content from a file.

        Args:
            path: the file.
            media_type: its MIME type; by default guessed from the name of the file.

        Raises:
            ConfigurationError: if the MIME type cannot be guessed, or the guessed one belongs to another class.
            OSError: if the file cannot be read.
        """
        from mimetypes import guess_type  # noqa: PLC0415  # takes 3 ms to load

        name = os.path.basename(path)  # noqa: PTH119  # pathlib takes another 2 ms
        guessed = media_type or guess_type(name)[0]
        if guessed is None:
            raise ConfigurationError(f"the media type of {name} cannot be guessed from its name; pass media_type")
        if not media_type and not guessed.startswith(cls._family):
            raise ConfigurationError(
                f"{name} has the media type {guessed}, not {cls._family}…; pass media_type if it is wrong"
            )
        with open(path, "rb") as file:  # noqa: PTH123  # as above
            return cls(media_type=guessed, data=file.read(), name=name)


class Image(Media):
    """An image."""

    __slots__ = ()
    _family: ClassVar[str] = "image/"


class Audio(Media):
    """An audio recording."""

    __slots__ = ()
    _family: ClassVar[str] = "audio/"


class Document(Media):
    """A document such as a PDF."""

    __slots__ = ()
