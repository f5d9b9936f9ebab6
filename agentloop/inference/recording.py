"""Inferences written down, and answered again from what was written."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import CanInfer, CanNameModel, CanReportRetries, RetryReport
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, ContractViolation
from agentloop.inference.fallback import FallbackInference
from agentloop.inference.http_inference import HttpInference
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, told_in_pieces
from agentloop.values.json import EMPTY_OBJECT, parse_json
from agentloop.values.secrets import Secret
from agentloop.values.serialization import from_json, to_json

_HIDDEN = "***"
_LONG = 8
_FORM = frozenset({"type", "role", "status", "kind", "finish_reason"})
"""Where a short key, as local servers take any, may stand as a word of the form of the file."""
_OF_ONE_RUN = frozenset({"id", "key", "started_at", "ended_at"})
"""What an execution says of the run it belongs to."""


def _as_texts(secrets: Iterable[str | Secret]) -> tuple[str, ...]:
    return tuple(secret.reveal() if isinstance(secret, Secret) else secret for secret in secrets)


@frozen(eq=False)
class RecordingInference(CanInfer, CanAcceptExecutionScope, CanReportRetries, CanNameModel):
    """Asks a model, and appends what was asked and answered to a file that a person can read and edit.

    The file is a row of JSON documents, each `{"model": …, "wire_format": …, "request": …, "response": …}`; the first two only
    where the model tells them. What an `HttpInference` sends as a key and the
    secrets that are named never get there.

    Attributes:
        inference: the model.
        path: the file; it is made when it is not there.
        secrets: texts that are written as `***`.
    """

    inference: CanInfer
    path: Path = field(converter=Path)
    secrets: tuple[str, ...] = field(default=(), converter=_as_texts, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The model that is recorded."""
        return self.inference.model_name if isinstance(self.inference, CanNameModel) else ""

    @property
    def wire_format_name(self) -> str:
        """The wire format of the model that is recorded."""
        return self.inference.wire_format_name if isinstance(self.inference, CanNameModel) else ""

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose model is bound to this execution."""
        if not isinstance(self.inference, CanAcceptExecutionScope):
            return self
        return evolve(self, inference=self.inference.with_execution_scope(scope))

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy whose model tells of failed attempts."""
        if not isinstance(self.inference, CanReportRetries):
            return self
        return evolve(self, inference=self.inference.with_retry_report(report))

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Ask the model, and write the exchange down.

        Raises:
            InferenceError: as the model does; what failed is not written down.
            OSError: when the file cannot be written.
        """
        response = await self.inference.infer(request)
        self._write(request, response)
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Ask the model in pieces, and write the exchange down when its answer is whole.

        Raises:
            InferenceError: as the model does; what failed is not written down.
            OSError: when the file cannot be written.
        """
        stream = self.inference.stream(request)
        try:
            async for piece in stream:
                if isinstance(piece, InferenceResponse):
                    self._write(request, piece)
                yield piece
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _write(self, request: InferenceRequest, response: InferenceResponse) -> None:
        told = {"model": self.model_name, "wire_format": self.wire_format_name}
        known = {name: value for name, value in told.items() if value}
        exchange = {"request": _as_asked(request), "response": parse_json(to_json(response))}
        secrets = tuple(self._all_secrets())
        document = {**known, **_without_words(exchange, [secret for secret in secrets if len(secret) < _LONG])}
        text = json.dumps(document, ensure_ascii=False, indent=2)
        for secret in secrets:
            if len(secret) >= _LONG:
                text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], _HIDDEN)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")

    def _all_secrets(self) -> Iterator[str]:
        yield from (secret for secret in self.secrets if secret)
        yield from _keys_of(self.inference)


class ReplayInference(CanInfer, CanNameModel):
    """Answers from a file that `RecordingInference` wrote; nothing is asked.

    Each recorded answer is given once: the first one whose request is the same. Any number of executions can be replayed from
    one file with one of these.

    Args:
        path: the file.
        in_order: whether answers are given in the order in which they stand, whatever is asked.

    Raises:
        ConfigurationError: when the file is not such a recording; names the place.
        OSError: when it cannot be read.
    """

    def __init__(self, path: Path | str, *, in_order: bool = False) -> None:
        self._path = Path(path)
        self._in_order = in_order
        exchanges = list(_exchanges(self._path))
        self._told = exchanges[0][0] if exchanges else EMPTY_OBJECT
        self._left = [(asked, response) for _, asked, response in exchanges]
        self._count = len(self._left)

    @property
    def model_name(self) -> str:
        """The model that was recorded first, where the recording tells it."""
        return str(self._told.get("model", ""))

    @property
    def wire_format_name(self) -> str:
        """The wire format of that model, where the recording tells it."""
        return str(self._told.get("wire_format", ""))

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Give the recorded answer.

        Raises:
            ContractViolation: when nothing recorded is left for this request; tells where it differs from the next one.
        """
        asked = _as_asked(request)
        for place, (recorded, response) in enumerate(self._left):
            if self._in_order or recorded == asked:
                del self._left[place]
                return response
        raise ContractViolation(self._nothing_for(asked))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Give the recorded answer in pieces: text by words.

        Raises:
            ContractViolation: when nothing recorded is left for this request.
        """
        response = await self.infer(request)
        for delta in told_in_pieces(response):
            yield delta
        yield response

    def __repr__(self) -> str:
        return f"ReplayInference({str(self._path)!r}: {len(self._left)} of {self._count} answers left)"

    def _nothing_for(self, asked: Any) -> str:
        if not self._left:
            return f"all {self._count} answers of {self._path} have been given; record the run again"
        where = next(_differences(self._left[0][0], asked, "request"), "nowhere")
        return f"no answer of {self._path} was recorded for this request; the next recorded one differs at {where}"


def _as_asked(request: InferenceRequest) -> Any:
    """Return a request as JSON, without what differs from run to run and no model sees: ids and times of executions."""
    return _without_run(parse_json(to_json(request))["value"])


def _without_run(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_run(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped = _OF_ONE_RUN if value.keys() >= _OF_ONE_RUN else frozenset()
    return {name: _without_run(item) for name, item in value.items() if name not in dropped}


def _without_words(value: Any, words: Sequence[str]) -> Any:
    """Return JSON without these words, which may be everyday ones: names, and what the form is made of, stay."""
    if isinstance(value, str):
        for word in words:
            value = value.replace(word, _HIDDEN)
        return value
    if isinstance(value, list):
        return [_without_words(item, words) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: item if name in _FORM else _without_words(item, words) for name, item in value.items()}


def _keys_of(inference: CanInfer) -> Iterator[str]:
    if isinstance(inference, FallbackInference):
        for one in inference.inferences:
            yield from _keys_of(one)
    elif isinstance(inference, RecordingInference):
        yield from _keys_of(inference.inference)
    elif isinstance(inference, HttpInference):
        yield from (secret.reveal() for secret in inference.config.secrets)


def _exchanges(path: Path) -> Iterator[tuple[Mapping[str, Any], Any, InferenceResponse]]:
    """Read a recording: each whole exchange, what was asked, and the answer."""
    text = path.read_text(encoding="utf-8")
    decoder, place, number = json.JSONDecoder(), 0, 0
    while rest := text[place:].lstrip():
        place = len(text) - len(rest)
        number += 1
        try:
            document, place = decoder.raw_decode(text, place)
            response = from_json(json.dumps(document["response"]).encode(), InferenceResponse)
            yield document, document["request"], response
        except (ValueError, KeyError, TypeError) as error:
            line = text.count("\n", 0, place) + 1
            raise ConfigurationError(
                f"{path}, exchange {number}, line {line}: not a recorded exchange: {error}"
            ) from error


def _differences(recorded: Any, asked: Any, where: str) -> Iterator[str]:
    """Return the places at which two JSON values differ."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in [*recorded, *(name for name in asked if name not in recorded)]:
            yield from _differences(recorded.get(name), asked.get(name), f"{where}.{name}")
    elif isinstance(recorded, list) and isinstance(asked, list) and len(recorded) == len(asked):
        for place, (one, other) in enumerate(zip(recorded, asked, strict=True)):
            yield from _differences(one, other, f"{where}[{place}]")
    elif recorded != asked:
        yield f"{where}: {_shown(recorded)} was recorded, {_shown(asked)} is asked"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004  # what fits on a line
