"""HTTP exchanges with model providers: with faults, recorded to a file, and replayed from it; imports httpx."""

from __future__ import annotations

import glob
import json
import os
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx

from agentloop.durable.redaction import Redaction
from agentloop.errors import ConfigurationError, ContractViolation
from agentloop.models.http_client import wrapped_transports
from agentloop.models.recording import first_difference
from agentloop.testing.faults import Fault, FaultKind, FaultPlan
from agentloop.values.secrets import MASK, open_private

# --- faults ---------------------------------------------------------------------------------------------------------


def faulty_client(plan: FaultPlan, client: httpx.AsyncClient | None = None) -> httpx.AsyncClient:
    """Return a client for `HttpInference(config, client=…)` whose requests have the faults of a plan at `http`.

    Args:
        plan: the faults. `drop` refuses the connection, or with `when="after"` resets it when the server has answered; `cut` closes
            it after a number of bytes of the body.
        client: a client whose requests are sent in the end, such as one in the process of a server; by default real connections.
    """
    inner = httpx.AsyncHTTPTransport() if client is None else _ClientTransport(client)
    return httpx.AsyncClient(transport=_FaultyTransport(inner, plan))


class _ClientTransport(httpx.AsyncBaseTransport):
    """Sends requests by a client.

    Args:
        client: the client, which remains open.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response is not read yet."""
        return await self._client.send(request, stream=True)


class _FaultyTransport(httpx.AsyncBaseTransport):
    """Sends requests with faults.

    Args:
        inner: sends requests without faults.
        plan: the faults.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, with the faults of this passage."""
        due = self._plan.pass_by("http")
        await self._plan.perform(due, "before", lambda: httpx.ConnectError("connection refused", request=request))
        response = await self._inner.handle_async_request(request)
        try:
            await self._plan.perform(due, "after", lambda: httpx.ReadError("connection reset", request=request))
        except BaseException:
            await response.aclose()
            raise
        cut = next((each for each in due if each.fault.kind is FaultKind.CUT), None)
        if cut is None:
            return response
        self._plan.occurred.append(cut)
        return _cut(response, cut.fault)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


def _cut(response: httpx.Response, fault: Fault) -> httpx.Response:
    stream = response.stream
    assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101  # an asynchronous transport made it
    return httpx.Response(response.status_code, headers=response.headers, stream=_CutStream(stream, fault.size))


class _CutStream(httpx.AsyncByteStream):
    """The beginning of a body, after which the connection is closed.

    Args:
        stream: the body.
        size: the number of bytes.
    """

    def __init__(self, stream: httpx.AsyncByteStream, size: int) -> None:
        self._stream = stream
        self._size = size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the bytes.

        Raises:
            httpx.RemoteProtocolError: after the last one.
        """
        left = self._size
        async for chunk in self._stream:
            if len(chunk) > left:
                yield chunk[:left]
                break
            left -= len(chunk)
            yield chunk
        raise httpx.RemoteProtocolError("peer closed connection without sending complete message body")

    async def aclose(self) -> None:
        """Close the connection."""
        await self._stream.aclose()


# --- recording ------------------------------------------------------------------------------------------------------

_SECRET_HEADERS = frozenset(
    {"authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"}
)
_SECRET_PARAMETERS = frozenset({"key", "api_key", "apikey", "api-key", "token", "access_token", "sig", "signature"})
_RECORDED_HEADERS = ("content-type", "retry-after", "request-id", "x-request-id")
"""The headers of answers that mean something to a client; the others may name the account of whoever recorded them."""
_SECRET_NAMES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_PAT")
_MIN_SECRET = 8


@contextmanager
def recorded_exchanges(path: Path | str) -> Iterator[None]:
    """Record the HTTP exchanges of all `HttpInference`s in a block, which call real services, to a file.

    The file is JSON that can be read and edited by hand. Headers of requests are not recorded, and of answers only those that
    a client reads. The keys that the requests carry, and the values of environment variables whose names end with `_KEY`, `_TOKEN`,
    `_SECRET`, `_PASSWORD` or `_PAT`, are masked wherever they occur. An existing file is replaced at the end of the block, also
    when the block raises.

    Raises:
        OSError: the file cannot be written.
    """
    recorder = _Recorder()
    try:
        with wrapped_transports(lambda inner: _RecordingTransport(inner, recorder)):
            yield
    finally:
        recorder.write(Path(path))


class _Recorder:
    """The exchanges of a block, and the secrets that they carried."""

    def __init__(self) -> None:
        self._exchanges: list[dict[str, Any]] = []
        named = [value for name, value in os.environ.items() if name.upper().endswith(_SECRET_NAMES)]
        self._secrets = {value for value in named if len(value) >= _MIN_SECRET}

    def add(self, request: httpx.Request, response: httpx.Response, body: bytes) -> None:
        """Add an exchange."""
        for name, value in request.headers.items():
            if name in _SECRET_HEADERS:
                self._secrets |= {part for part in value.replace(",", " ").split() if len(part) >= _MIN_SECRET}
        for name, value in request.url.params.multi_items():
            if name.lower() in _SECRET_PARAMETERS:
                self._secrets.add(value)
        headers = {name: response.headers[name] for name in _RECORDED_HEADERS if name in response.headers}
        answer = {"status": response.status_code, "headers": headers, **_body_form(body)}
        self._exchanges.append({"request": _request_form(request), "response": answer})

    def write(self, path: Path) -> None:
        """Write the exchanges with secrets masked."""
        masked = Redaction(self._secrets).redact({"exchanges": self._exchanges})
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        # Half of a character, which no encoding can write, becomes its escape in JSON.
        with open(path, "w", encoding="utf-8", errors="backslashreplace", opener=open_private) as file:
            file.write(f"{json.dumps(masked, ensure_ascii=False, indent=2)}\n")


class _RecordingTransport(httpx.AsyncBaseTransport):
    """Sends requests, and records them with their answers.

    Args:
        inner: sends requests.
        recorder: the exchanges.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, recorder: _Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and record it when the answer has been read."""
        request.headers["accept-encoding"] = "identity"  # the file is to be read by people
        response = await self._inner.handle_async_request(request)
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)  # noqa: S101  # an asynchronous transport made it
        recorded = _RecordedStream(stream, lambda body: self._recorder.add(request, response, body))
        return httpx.Response(response.status_code, headers=response.headers, stream=recorded)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._inner.aclose()


class _RecordedStream(httpx.AsyncByteStream):
    """A body that is recorded while it is read.

    Args:
        stream: the body.
        record: is called with what was read, once.
    """

    def __init__(self, stream: httpx.AsyncByteStream, record: Any) -> None:
        self._stream = stream
        self._record = record
        self._chunks: list[bytes] = []

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""
        async for chunk in self._stream:
            self._chunks.append(chunk)
            yield chunk

    async def aclose(self) -> None:
        """Close the connection, and record what was read."""
        await self._stream.aclose()
        if self._record is not None:
            self._record(b"".join(self._chunks))
            self._record = None


# --- replay ---------------------------------------------------------------------------------------------------------


@contextmanager
def replayed_exchanges(path: Path | str) -> Iterator[None]:
    """Answer the HTTP requests of all `HttpInference`s in a block from a file of `recorded_exchanges`, without a network.

    Each recorded answer is used once: for the first request with the same method, address and body. Where the recorded one is
    masked, any text counts as the same. Another request raises `ContractViolation`, which names the first difference from the next
    recorded one.

    Raises:
        ConfigurationError: the file is missing or is no recording.
    """
    path = Path(path)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        exchanges = [(dict(exchange["request"]), dict(exchange["response"])) for exchange in document["exchanges"]]
    except FileNotFoundError:
        raise ConfigurationError(f"{path} is missing; record the exchanges with real services first") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{path} is no file of recorded exchanges: {error}") from error
    with wrapped_transports(lambda _: _ReplayTransport(path, exchanges)):
        yield


class _ReplayTransport(httpx.AsyncBaseTransport):
    """Answers requests from a recording.

    Args:
        path: the file.
        remaining: the requests and answers that were not used yet; changed in place.
    """

    def __init__(self, path: Path, remaining: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
        self._path = path
        self._remaining = remaining

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the recorded answer.

        Raises:
            ContractViolation: there is none for this request.
        """
        requested = _request_form(request)
        for index, (recorded, answer) in enumerate(self._remaining):
            if recorded == _with_masks(requested, recorded):
                del self._remaining[index]
                return httpx.Response(answer["status"], headers=answer["headers"], content=_body_of(answer))
        if not self._remaining:
            raise ContractViolation(f"all answers of {self._path} have been used; record the exchanges again")
        recorded = self._remaining[0][0]
        difference = first_difference(recorded, _with_masks(requested, recorded), "request")
        raise ContractViolation(f"no request in {self._path} is like this one; the next one differs at {difference}")


def _request_form(request: httpx.Request) -> dict[str, Any]:
    query = [
        (name, MASK if name.lower() in _SECRET_PARAMETERS else value)
        for name, value in parse_qsl(request.url.query.decode("ascii"), keep_blank_values=True)
    ]
    url = str(request.url.copy_with(query=urlencode(query).encode() or None))
    return {"method": request.method, "url": url, **_body_form(request.content)}


def _with_masks(requested: Any, recorded: Any) -> Any:
    """Return what is requested, with the masks of a recorded request in the texts that are the same apart from them."""
    if isinstance(requested, dict) and isinstance(recorded, dict):
        return {name: _with_masks(value, recorded.get(name)) for name, value in requested.items()}
    if isinstance(requested, list) and isinstance(recorded, list) and len(requested) == len(recorded):
        return [_with_masks(*pair) for pair in zip(requested, recorded, strict=True)]
    if isinstance(recorded, str) and MASK in recorded and isinstance(requested, str | int | float):
        pattern = "*".join(map(glob.escape, recorded.split(MASK)))
        return recorded if fnmatchcase(str(requested), pattern) else requested
    return requested


def _body_form(body: bytes) -> dict[str, Any]:
    """Return a body in the most readable form: JSON, text or Base64."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(body).decode("ascii")}
    try:
        return {"json": json.loads(text)} if text[:1] in {"{", "["} else {"text": text}
    except ValueError:
        return {"text": text}


def _body_of(form: Mapping[str, Any]) -> bytes:
    if "base64" in form:
        return b64decode(form["base64"])
    return json.dumps(form["json"]).encode() if "json" in form else str(form.get("text", "")).encode()
