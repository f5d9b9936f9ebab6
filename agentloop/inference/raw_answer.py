"""An HTTP answer whose body is still to be read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from attrs import field, frozen

from agentloop.errors import InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.errors import request_id
from agentloop.values.value import Value


class GiveBack(Protocol):
    """Takes a connection back when its answer is closed."""

    def __call__(self, *, usable: bool) -> Awaitable[None]:
        """Take it back, and close it unless it is usable."""


@frozen(eq=False, repr=False)
class RawResponse(Value):
    """An HTTP answer, whole.

    Attributes:
        status: the status.
        headers: the headers, by names in lower case.
        body: the whole body.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=lambda body: f"<{len(body)} bytes>")


class RawAnswer:
    """An HTTP answer whose head has come. Its body is read once, whole or in pieces, and then it is closed.

    Args:
        response: the response, of httpx's shape.
        config: where it came from, and the limits.
        package: the package with the classes of the errors.
        give_back: takes the connection back; left out where a client keeps its own.
    """

    __slots__ = ("_config", "_ended", "_give_back", "_package", "_response")

    def __init__(self, response: Any, config: LLMConfig, package: Any, give_back: GiveBack | None = None) -> None:
        self._response = response
        self._config = config
        self._package = package
        self._give_back = give_back
        self._ended = False

    @property
    def status(self) -> int:
        """The HTTP status."""
        status: int = self._response.status_code
        return status

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, by names in lower case."""
        headers: Mapping[str, str] = self._response.headers
        return headers

    async def read(self) -> RawResponse:
        """Read the whole body.

        Raises:
            ProviderUnavailable: when nothing more comes in time.
            InvalidResponse: when it breaks off, or is larger than the limit.
        """
        pieces = [piece async for piece in self.pieces()]
        return RawResponse(self.status, self.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Read the body as it comes.

        Raises:
            ProviderUnavailable: when nothing more comes in time.
            InvalidResponse: when it breaks off, or is larger than the limit.
        """
        most, size = self._config.max_response_bytes, 0
        body = self._response.aiter_bytes()
        try:
            async for piece in body:
                size += len(piece)
                if size > most:
                    raise self._too_large(most)
                yield piece
        except self._package.HTTPError as error:
            error.request = None  # it holds the key
            raise self._broken_off(error) from error
        else:
            self._ended = True
        finally:
            if not self._ended:
                await self._leave(body)

    async def _leave(self, body: AsyncIterator[bytes]) -> None:
        """Close the answer before its end.

        A body is read through generators inside of generators. Left where they are, the event loop would have to end them, each
        by a task of its own; reading on after the end of the connection ends them here.
        """
        await self._response.aclose()
        with suppress(Exception):  # whatever reading from a closed connection raises
            async for _ in body:
                continue

    async def aclose(self) -> None:
        """Close the answer; a connection whose answer was not read to its end is not used again."""
        if self._give_back is None:
            await self._response.aclose()
            return
        give_back, self._give_back = self._give_back, None
        try:
            await self._response.aclose()
        finally:
            await give_back(usable=self._ended)

    def _too_large(self, most: int) -> InvalidResponse:
        return InvalidResponse(
            f"the answer is larger than {most:,} bytes and was given up; raise max_response_bytes if it is right",
            status=self.status,
            request_id=request_id(self.headers),
        )

    def _broken_off(self, error: Exception) -> InferenceError:
        """Translate what kept an answer from ending."""
        where, status, of = self._config.address, self.status, request_id(self.headers)
        if isinstance(error, self._package.TimeoutException):
            why = f"the answer from {where} stopped for {self._config.timeout:g} seconds"
            return ProviderUnavailable(why, status=status, request_id=of)
        if isinstance(error, self._package.DecodingError):
            why = f"the answer from {where} cannot be decompressed: {told_by(error)}"
            return InvalidResponse(why, status=status, request_id=of)
        broken = InvalidResponse(f"the answer from {where} broke off: {told_by(error)}", status=status, request_id=of)
        broken.retryable = True
        return broken


def told_by(error: Exception) -> str:
    """Return what an error says, or what it is when it says nothing."""
    return str(error) or type(error).__name__
