"""Recording of model responses to a file, and replay from it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope
from agentloop.contracts.can_infer import (
    CanInfer,
    CanNameModel,
    CanReportDelays,
    CanReportOmissions,
    CanReportRetries,
    CanReportRoutes,
    DelayReport,
    OmissionReport,
    RetryReport,
    RouteReport,
)
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError, ContractViolation, ToolsNotSupported
from agentloop.models.fallback import FallbackInference
from agentloop.models.http_inference import HttpInference
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, iter_deltas
from agentloop.values.json import EMPTY_OBJECT, parse_json
from agentloop.values.secrets import Secret, open_private
from agentloop.values.serialization import from_json, to_json

_MASK = "***"
_MIN_LONG_SECRET = 8
_STRUCTURAL_KEYS = frozenset({"type", "role", "status", "kind", "finish_reason"})
"""Keys whose values belong to the format of the file; a short secret may be equal to one of these values."""
_RUN_KEYS = frozenset({"id", "key", "started_at", "ended_at"})
"""The keys of an execution that differ between runs."""
_MAX_SHOWN = 80


def _as_texts(secrets: Iterable[str | Secret]) -> tuple[str, ...]:
    return tuple(secret.reveal() if isinstance(secret, Secret) else secret for secret in secrets)


@frozen(eq=False)
class RecordingInference(
    CanInfer,
    CanAcceptExecutionScope,
    CanReportRetries,
    CanReportDelays,
    CanReportOmissions,
    CanReportRoutes,
    CanNameModel,
):
    """Calls a model, and appends each request and response to a file that can be read and edited by hand.

    The file is a sequence of JSON documents `{"model": …, "wire_format": …, "request": …, "response": …}`; the first two
    entries are present only if the model provides them. A refusal of tools, after which a driver asks in another mode, has an entry
    `refusal` with its message instead of the response; other failures are not recorded. The keys of an `HttpInference` and the named secrets are masked. A new
    file can be read by its owner only.

    Attributes:
        inference: the model.
        path: the file, which is created if it does not exist.
        secrets: texts that are written as `***`.
    """

    inference: CanInfer
    path: Path = field(converter=Path)
    secrets: tuple[str, ...] = field(default=(), converter=_as_texts, kw_only=True, repr=False)

    @property
    def model_name(self) -> str:
        """The name of the recorded model."""
        return self.inference.model_name if isinstance(self.inference, CanNameModel) else ""

    @property
    def wire_format_name(self) -> str:
        """The wire format of the recorded model."""
        return self.inference.wire_format_name if isinstance(self.inference, CanNameModel) else ""

    @property
    def is_makers_api(self) -> bool:
        """Whether the recorded model is called at the API of its maker."""
        return isinstance(self.inference, CanNameModel) and self.inference.is_makers_api

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose model is bound to the scope."""
        if not isinstance(self.inference, CanAcceptExecutionScope):
            return self
        return evolve(self, inference=self.inference.with_execution_scope(scope))

    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy whose model reports failed attempts."""
        if not isinstance(self.inference, CanReportRetries):
            return self
        return evolve(self, inference=self.inference.with_retry_report(report))

    def with_delay_report(self, report: DelayReport) -> Self:
        """Return a copy whose model reports requests that wait."""
        if not isinstance(self.inference, CanReportDelays):
            return self
        return evolve(self, inference=self.inference.with_delay_report(report))

    def with_omission_report(self, report: OmissionReport) -> Self:
        """Return a copy whose model reports tools that it leaves out."""
        if not isinstance(self.inference, CanReportOmissions):
            return self
        return evolve(self, inference=self.inference.with_omission_report(report))

    def with_route_report(self, report: RouteReport) -> Self:
        """Return a copy whose model reports which model it chooses."""
        if not isinstance(self.inference, CanReportRoutes):
            return self
        return evolve(self, inference=self.inference.with_route_report(report))

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Call the model and record the exchange.

        Raises:
            InferenceError: as the model does.
            OSError: when the file cannot be written.
        """
        try:
            response = await self.inference.infer(request)
        except ToolsNotSupported as refusal:
            self._record(request, refusal)
            raise
        self._record(request, response)
        return response

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Stream from the model, and record the exchange when the response is complete.

        Raises:
            InferenceError: as the model does.
            OSError: when the file cannot be written.
        """
        # The response is recorded before it is yielded: a consumer may stop reading after it.
        stream = self.inference.stream(request)
        try:
            async for item in stream:
                if isinstance(item, InferenceResponse):
                    self._record(request, item)
                yield item
        except ToolsNotSupported as refusal:
            self._record(request, refusal)
            raise
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()

    def _record(self, request: InferenceRequest, result: InferenceResponse | ToolsNotSupported) -> None:
        names = {
            "model": self.model_name,
            "wire_format": self.wire_format_name,
            "is_makers_api": self.is_makers_api,
        }
        header = {name: value for name, value in names.items() if value}
        exchange = {"request": _comparable_form(request)}
        if isinstance(result, InferenceResponse):
            exchange["response"] = parse_json(to_json(result))
        else:
            exchange["refusal"] = str(result)
        secrets = [secret for secret in (*self.secrets, *_keys_of(self.inference)) if secret]
        # A short secret, such as the "x" that local servers accept, can occur anywhere in the file: it is masked in values
        # only. A long one is masked wherever it occurs, also when it is part of a key.
        short = [secret for secret in secrets if len(secret) < _MIN_LONG_SECRET]
        text = json.dumps({**header, **_mask(exchange, short)}, ensure_ascii=False, indent=2)
        for secret in secrets:
            if len(secret) >= _MIN_LONG_SECRET:
                text = text.replace(json.dumps(secret, ensure_ascii=False)[1:-1], _MASK)
        with open(self.path, "a", encoding="utf-8", opener=open_private) as file:
            file.write(f"{text}\n")


class ReplayInference(CanInfer, CanNameModel):
    """Responds from a file that `RecordingInference` wrote, without calling a model.

    Each recorded response is returned once: the first one with an equal request. One instance serves any number of
    executions.

    Args:
        path: the file.
        in_order: whether to return the responses in the order of the file, whatever the requests are.

    Raises:
        ConfigurationError: when the file is not a recording; names the place.
        OSError: when the file cannot be read.
    """

    def __init__(self, path: Path | str, *, in_order: bool = False) -> None:
        self._path = Path(path)
        self._in_order = in_order
        exchanges = list(_exchanges(self._path))
        self._header = exchanges[0][0] if exchanges else EMPTY_OBJECT
        self._remaining = [(request, result) for _, request, result in exchanges]
        self._count = len(self._remaining)

    @property
    def model_name(self) -> str:
        """The model of the first recorded exchange; empty if the recording does not name it."""
        return str(self._header.get("model", ""))

    @property
    def wire_format_name(self) -> str:
        """The wire format of the first recorded exchange; empty if the recording does not name it."""
        return str(self._header.get("wire_format", ""))

    @property
    def is_makers_api(self) -> bool:
        """Whether the first exchange was recorded at the API of the model's maker; False if the recording does not say it."""
        return self._header.get("is_makers_api") is True

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Return the recorded response.

        Raises:
            ContractViolation: when no recorded response remains for this request; names the first difference from the next
                recorded request.
            ToolsNotSupported: when the model refused this request.
        """
        requested = _comparable_form(request)
        for index, (recorded, result) in enumerate(self._remaining):
            # Responses are consumed, since equal requests may have had different responses.
            if self._in_order or recorded == requested:
                del self._remaining[index]
                if isinstance(result, ToolsNotSupported):
                    raise result
                return result
        raise ContractViolation(self._why_missing(requested))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        """Yield the recorded response as deltas, word by word, then the complete response.

        Raises:
            ContractViolation: when no recorded response remains for this request.
        """
        response = await self.infer(request)
        for delta in iter_deltas(response):
            yield delta
        yield response

    def __repr__(self) -> str:
        return f"ReplayInference({str(self._path)!r}: {len(self._remaining)} of {self._count} responses left)"

    def _why_missing(self, requested: Any) -> str:
        if not self._remaining:
            return f"all {self._count} responses of {self._path} have been used; record the run again"
        difference = first_difference(self._remaining[0][0], requested, "request")
        return f"no response in {self._path} matches this request; the next recorded request differs at {difference}"


def _comparable_form(request: InferenceRequest) -> Any:
    """Return a request as JSON, without the ids and times of executions, which differ between runs and no model sees."""
    # The JSON form is compared instead of the request, because the recording contains the JSON form.
    return _without_run_data(parse_json(to_json(request))["value"])


def _without_run_data(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_run_data(item) for item in value]
    if not isinstance(value, dict):
        return value
    # Only an execution has all of these keys; a call, for example, has just an id, which is compared.
    removed = _RUN_KEYS if value.keys() >= _RUN_KEYS else frozenset()
    return {name: _without_run_data(item) for name, item in value.items() if name not in removed}


def _mask(value: Any, secrets: Sequence[str]) -> Any:
    """Return JSON whose texts do not contain the secrets; keys and structural values are unchanged."""
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, _MASK)
        return value
    if isinstance(value, list):
        return [_mask(item, secrets) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: item if name in _STRUCTURAL_KEYS else _mask(item, secrets) for name, item in value.items()}


def _keys_of(inference: CanInfer) -> Iterator[str]:
    """Yield the secrets of the configurations of an inference, also when other inferences wrap it."""
    if isinstance(inference, FallbackInference):
        for model in inference.inferences:
            yield from _keys_of(model)
    elif isinstance(inference, RecordingInference):
        yield from _keys_of(inference.inference)
    elif isinstance(inference, HttpInference):
        yield from (secret.reveal() for secret in inference.config.secrets)


def _exchanges(path: Path) -> Iterator[tuple[Mapping[str, Any], Any, InferenceResponse | ToolsNotSupported]]:
    """Yield the exchanges of a recording: the document, the request, and the response or the refusal."""
    text = path.read_text(encoding="utf-8")
    decoder, position, number = json.JSONDecoder(), 0, 0
    while remainder := text[position:].lstrip():
        position = len(text) - len(remainder)
        number += 1
        # The documents may span lines, so they are decoded one after the other.
        try:
            document, position = decoder.raw_decode(text, position)
            if "refusal" in document:
                yield document, document["request"], ToolsNotSupported(str(document["refusal"]))
                continue
            response = from_json(json.dumps(document["response"]).encode(), InferenceResponse)
            yield document, document["request"], response
        except (ValueError, KeyError, TypeError) as error:
            line = text.count("\n", 0, position) + 1
            raise ConfigurationError(
                f"{path}, exchange {number}, line {line}: not a recorded exchange: {error}"
            ) from error


def first_difference(recorded: Any, requested: Any, path: str) -> str:
    """Return where two JSON values differ first, with both values; "nowhere" for equal ones."""
    return next(_differences(recorded, requested, path), "nowhere")


def _differences(recorded: Any, requested: Any, path: str) -> Iterator[str]:
    """Yield the differences between two JSON values."""
    if isinstance(recorded, dict) and isinstance(requested, dict):
        for name in [*recorded, *(name for name in requested if name not in recorded)]:
            yield from _differences(recorded.get(name), requested.get(name), f"{path}.{name}")
    elif isinstance(recorded, list) and isinstance(requested, list) and len(recorded) == len(requested):
        for index, (old, new) in enumerate(zip(recorded, requested, strict=True)):
            yield from _differences(old, new, f"{path}[{index}]")
    elif recorded != requested:
        yield f"{path}: {_shown(recorded)} was recorded, {_shown(requested)} is requested"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
