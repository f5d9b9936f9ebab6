"""The parts that a message or a response is made of, except calls."""

from __future__ import annotations

import os
from typing import Self

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Text(Value):
    """A piece of text.

    Attributes:
        text: the text itself.
        provider_data: what a wire format must send back with this part, by the wire format's name (a signature, an id).
    """

    text: str
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)


@frozen(eq=False, repr=False)
class Reasoning(Value):
    """What a model thought before it answered or called a tool.

    Attributes:
        text: the thoughts as far as the provider shows them; may be empty when only an encrypted form exists.
        provider_data: signature or encrypted content, by the name of the wire format that must get it back.
    """

    text: str
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object, kw_only=True)


@frozen(eq=False, repr=False)
class ProviderPart(Value):
    """An opaque piece of one provider's answer that must be echoed to that provider and means nothing to others.

    Attributes:
        wire_format: the name of the wire format it belongs to, such as `anthropic-messages`.
        payload: the piece as JSON.
    """

    wire_format: str
    payload: JsonValue = field(converter=freeze)


def _as_bytes(data: bytes | bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


@frozen(eq=False, repr=False, kw_only=True)
class Media(Value):
    """Content that is not text, by value or by reference; exactly one of `data`, `url` and `file_id` is set.

    Attributes:
        media_type: the MIME type, such as `image/png`; may be empty for a reference.
        data: the content itself.
        url: where the provider can fetch it.
        file_id: the provider's own id of an uploaded file.
        name: a file name for the model to see; optional.
        provider_data: what a wire format must send back with this part, by the wire format's name.
    """

    media_type: str = ""
    data: bytes | None = field(
        default=None, converter=_as_bytes, repr=lambda data: f"<{len(data)} bytes>" if data else "None"
    )
    url: str | None = None
    file_id: str | None = None
    name: str = ""
    provider_data: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)

    def __attrs_post_init__(self) -> None:
        given = [name for name in ("data", "url", "file_id") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            raise ConfigurationError(
                f"{type(self).__name__} needs exactly one of data, url and file_id; given: {found}"
            )
        if self.data is not None and not self.media_type:
            raise ConfigurationError(f"{type(self).__name__} with data needs a media_type such as 'image/png'")

    @classmethod
    def from_path(cls, path: str | os.PathLike[str], media_type: str = "") -> Self:
        """Read a file.

        Args:
            path: the file.
            media_type: its MIME type; guessed from the file's name when left out.

        Raises:
            ConfigurationError: when the MIME type cannot be guessed.
            OSError: when the file cannot be read.
        """
        from mimetypes import guess_type  # noqa: PLC0415  # 3 ms that only those pay who guess

        name = os.path.basename(path)  # noqa: PTH119  # pathlib: another 2 ms
        kind = media_type or guess_type(name)[0]
        if kind is None:
            raise ConfigurationError(f"the media type of {name} cannot be told from its name; pass media_type")
        with open(path, "rb") as file:  # noqa: PTH123  # the same
            return cls(media_type=kind, data=file.read(), name=name)


class Image(Media):
    """A picture."""

    __slots__ = ()


class Audio(Media):
    """A sound recording."""

    __slots__ = ()


class Document(Media):
    """A document such as a PDF."""

    __slots__ = ()
