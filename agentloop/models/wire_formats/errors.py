"""Typed errors for HTTP error statuses and for the error objects in response bodies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
    ToolsNotSupported,
)
from agentloop.models.wire_formats.framing import MAX_ENTRIES
from agentloop.values.json import format_json, parse_json

_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
_MAX_EXCERPT = 500


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the provider's id of the request, or None."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), None)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that the provider asks for, or None.

    Supports `retry-after-ms`, and `Retry-After` in seconds or as a date, which is relative to the response's own `Date`.
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "").strip()
        if not value:
            return None
        # `float` would also accept "nan" and "inf".
        if value.replace(".", "", 1).isdecimal():
            return float(value)
        # Relative to the date of the response, the wait does not depend on the clock of this machine.
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (ValueError, TypeError, LookupError, ArithmeticError):  # raised by malformed dates
        return None


def status_error(
    status: int, headers: Mapping[str, str], body: bytes, *, code: str = "", meaning: int | None = None
) -> InferenceError:
    """Return the typed error for a response with an error status.

    Args:
        status: the HTTP status.
        headers: the HTTP headers, by lower-case names.
        body: the complete body.
        code: the code of the error, where the body has none.
        meaning: the HTTP status that the code stands for, which then decides the class of the error.
    """
    data = _parse_body(body)
    message, own_code = _message_and_code(data)
    code = own_code or _shorten(code)
    # Without a message, the error quotes the body, such as the page of a gateway.
    message = message or _redirection(status, headers) or _excerpt(body)
    return _kind_by_status(meaning or status, f"{code} {message}")(
        f"the provider responded with HTTP {status}: {_with_code(message, code)}",
        status=status,
        request_id=request_id(headers) or _request_id_in(data),
        retry_after=_wait(headers, data),
    )


def reported_error(data: Any, status: int, headers: Mapping[str, str]) -> InferenceError:
    """Return the typed error for an error in a response of status 200, or in a stream.

    Args:
        data: a JSON object with the error under `error` or `errors`, or the error itself: an object or a message.
        status: the HTTP status of the response, for errors that do not contain another.
        headers: the HTTP headers, by lower-case names.
    """
    message, code = _message_and_code(data)
    # Routers put the HTTP status of the upstream service into the error; the error itself may also be the data.
    statuses = [_status_of(place.get(name)) for place in _places(data) for name in _CODE_ENTRIES]
    error_status = next(filter(None, statuses), 0) or _status_of(code)
    text = f"{code} {message}"
    kind = _kind_by_status(error_status, text) if error_status else _kind_by_text(text)
    return kind(
        f"the provider responded with an error: {_with_code(message, code) or 'it gives no reason'}",
        status=error_status or status,
        request_id=request_id(headers) or _request_id_in(data),
        retry_after=_wait(headers, data),
    )


def invalid_response(reason: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> InvalidResponse:
    """Return the error for a response that cannot be decoded, with an excerpt of its body."""
    excerpt = f": {_excerpt(body)}" if body else ""
    return InvalidResponse(f"{reason}{excerpt}", status=status, request_id=request_id(headers))


def find_error(data: Any) -> dict[str, Any] | None:
    """Return a JSON object that reports an error, whatever else it contains; None for any other JSON value.

    The rule holds for every wire format, for complete responses and for events of streams. Null, false and empty entries
    report nothing, since some services always send them.
    """
    if not isinstance(data, dict):
        return None
    is_error = data.get("error") or data.get("errors") or data.get("type") == "error" or data.get("object") == "error"
    return data if is_error or _failed_status(data.get(_BASE_RESPONSE)) else None


def find_bare_error(data: Any) -> dict[str, Any] | None:
    """Return a JSON object without an answer that reports an error without an error entry; None for any other JSON value.

    Such an object has a message beside a code, an HTTP status, or a mark that the request has failed, and nothing else tells it
    from a note about the progress. The caller knows that the object has no part of an answer.

    Args:
        data: the JSON value.
    """
    # Cohere and Ollama answer with an object `message`: an answer of another form, then, rather than an error.
    if not isinstance(data, dict) or _BARE_ENTRIES.isdisjoint(data) or isinstance(data.get("message"), dict):
        return None
    message, code = _message_and_code(data)
    codes = [data[name] for name in _CODE_ENTRIES if isinstance(data.get(name), str | int)]
    if _has_succeeded(data, codes):
        return None
    is_failed = any(map(_status_of, codes)) or any(data.get(name) is False for name in _SUCCESS_MARKS)
    is_told = bool(message) and (
        any(_is_code(data.get(name)) for name in _CODE_ENTRIES if name != "status")
        or not isinstance(data.get("detail", ""), str | None)
        or _known_kind(f"{code} {message}") is not None
    )
    return data if is_failed or is_told else None


def _has_succeeded(data: Mapping[str, Any], codes: Sequence[object]) -> bool:
    """Return whether an object says that the request has succeeded, as some services do beside every answer."""
    texts = [str(code).lower() for code in codes]
    return any(data.get(name) is True for name in _SUCCESS_MARKS) or (
        bool(texts) and all(text in _SUCCESS_WORDS or re.fullmatch("2[0-9]{2}", text) for text in texts)
    )


def _failed_status(outcome: object) -> bool:
    """Return whether the outcome that MiniMax puts beside every answer is an error."""
    code = outcome.get("status_code") if isinstance(outcome, dict) else None
    return _is_code(code) and str(code) != "0"


def truncation_error(reason: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> InvalidResponse:
    """Return the error for a response without its end; the request can be sent again, as after a broken connection."""
    error = invalid_response(reason, status, headers, body)
    error.retryable = True
    return error


# --- the class of an error -----------------------------------------------------------------------------------------

_KINDS_BY_STATUS: Mapping[int, type[InferenceError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    408: ProviderUnavailable,
    409: ProviderUnavailable,
    424: ProviderUnavailable,  # a service behind the provider failed
    425: ProviderUnavailable,
    429: RateLimited,
    498: AuthenticationError,  # "invalid token", which is not registered but in use
}
_FIRST_REDIRECTION, _FIRST_CLIENT_ERROR, _FIRST_SERVER_ERROR = 300, 400, 500
_CODE_ENTRIES = ("code", "status", "status_code", "statusCode", "error_code", "errorCode")
_MESSAGE_ENTRIES = (
    *(
        "message",
        "msg",
        "detail",
        "error",
        "error_message",
        "errorMessage",
        "error_msg",
        "status_msg",
        "Message",
        "title",
    ),
    "reason",
)
_SUCCESS_MARKS = ("success", "ok")
_SUCCESS_WORDS = frozenset({"0", "ok", "success", "succeeded", "completed"})
_BASE_RESPONSE = "base_resp"
_BARE_ENTRIES = frozenset({*_MESSAGE_ENTRIES, *_CODE_ENTRIES, *_SUCCESS_MARKS, "errors", "metadata", _BASE_RESPONSE})
"""A report of an error has at least one of these entries; few events of a stream have any."""
_BASE_CODES: Mapping[int, int] = {
    **dict.fromkeys((1002, 1039, 1041, 2045, 2056), 429),
    **dict.fromkeys((1004, 2049), 401),
    **dict.fromkeys((1026, 1042, 2013), 400),
    1001: 408,
    1008: 402,
}
"""The codes of MiniMax, by the HTTP statuses that they stand for.

Source: https://platform.minimax.io/docs/api-reference/errorcode
"""
_TOO_LONG = (
    r"context.?(length|window|size|limit)|maximum.?(context|input|prompt|model) ?length|(prompt|input) (is )?too long"
    r"|too many (input )?tokens|token count.{0,80}exceed|exceed.{0,40}(token limit|context)|reduce the length"
    r"|tokens.{0,60}must be <=|range of input length|tokens in request more than max|\btokens_limit_reached\b"
    r"|\b(prompt|input)( length)?( \([^)]{0,40}\))? exceeds (the )?max(imum)?( allowed)? length"
    # A limit of tokens per minute is another matter.
    r"|\binput tokens exceed(?!.{0,80}(minute|second|\bday\b|rate|quota))"
)
_TOOLS = r"(?<![\w.'])(?<!parallel )[\"'`]?(?:tools?(?:[ _-]?(?:use|calls?|calling|choice))?|function[ _-]?call(?:ing|s)?)\b(?!\.\w|\[)[\"'`]?"
# A server without the option for tools, a model whose template has none, a router that finds no service with tools, and a
# service that calls the field unknown. Fields of tools, such as `tools[0].strict` and `parallel_tool_calls`, are another matter.
_NO_TOOLS = (
    rf"(?:does not|doesn't|do not|don't|not) (?:currently )?support (?:\S+ ){{0,2}}[\[{{]?{_TOOLS}(?! with)"
    rf"|{_TOOLS}(?:=\S+)? (?:(?:is|are) |has |have )?not (?:currently |been )?(?:supported|enabled|available|implemented)"
    rf"|{_TOOLS} (?:is|are) (?:unsupported|disabled)"
    rf"|no (?:\S+ ){{0,3}}that support (?:\S+ ){{0,2}}{_TOOLS}"
    rf"|{_TOOLS}(?:=\S+)? (?:\S+ ){{0,2}}?requires? --\w"
    rf"|(?:unsupported|unknown|unrecognized|unexpected) (?:keyword )?"
    rf"(?:param\w*|fields?|arguments?|request argument supplied):? {_TOOLS}"
    rf"|{_TOOLS} was unexpected"
    # The place of a field that a service with a closed schema refuses.
    r"|\bbody['\"], ?['\"](?:tools|tool_choice)['\"][\])].{1,40}(?:not permitted|forbidden)"
)
_QUOTA = r"rate.?limit|insufficient_quota|quota|resource_exhausted|too.many.requests|request limit"
_BAD_KEY = (
    r"api.?key.{0,12}(invalid|not valid|incorrect|expired|missing)|(invalid|incorrect|expired|missing).{0,12}api.?key"
    r"|\bno api.?key"
)
_UNAUTHORIZED = r"invalid.{0,12}key|authentication|unauthorized|permission"
_OVERLOADED = r"overloaded|unavailable|internal|server_error|api_error|timeout"
_BAD_REQUEST = (
    r"bad.?request|invalid.?(request|argument|prompt|image|input|parameter|schema)|validation|precondition|not.?found"
    r"|unprocessable|too_large|(does not|doesn't|not) support|unsupported|unknown (field|model|parameter)"
    r"|no such (model|field|parameter)|field required|value_error"
)


def _matches(pattern: str, text: str) -> bool:
    """Return whether a pattern occurs in a text; it is compiled then, since most programs need none of them."""
    return re.search(pattern, text, re.IGNORECASE) is not None


def _kind_by_status(status: int, text: str) -> type[InferenceError]:
    kind = _KINDS_BY_STATUS.get(status)
    if kind is not None:
        return kind
    # Some servers report a request that they cannot serve as configured as HTTP 500; it must not be sent again.
    if status >= _FIRST_CLIENT_ERROR and _matches(_NO_TOOLS, text):
        return ToolsNotSupported
    if status >= _FIRST_SERVER_ERROR:
        return ProviderUnavailable
    if status < _FIRST_CLIENT_ERROR:
        return InvalidResponse
    # Providers report both an overlong conversation and, some of them, a bad key as HTTP 400.
    if _matches(_TOO_LONG, text):
        return ContextLengthExceeded
    return AuthenticationError if _matches(_BAD_KEY, text) else BadRequest


def _kind_by_text(text: str) -> type[InferenceError]:
    # The service accepted the request, since it responded with a success status, and failed afterwards.
    return _known_kind(text) or ProviderUnavailable


def _known_kind(text: str) -> type[InferenceError] | None:
    """Return the class of an error whose text says what it is; None for another one."""
    # The order matters: "unavailable" or "internal" may also occur in messages about keys and limits.
    for pattern, kind in (
        (_TOO_LONG, ContextLengthExceeded),
        (_NO_TOOLS, ToolsNotSupported),
        (_QUOTA, RateLimited),
        (_BAD_KEY, AuthenticationError),
        (_UNAUTHORIZED, AuthenticationError),
        (_OVERLOADED, ProviderUnavailable),
        (_BAD_REQUEST, BadRequest),
    ):
        if _matches(pattern, text):
            return kind
    return None


def _status_of(code: object) -> int:
    """Return the HTTP error status that an error code is, or 0."""
    if isinstance(code, str) and re.fullmatch("[45][0-9]{2}", code):
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else 0  # noqa: PLR2004  # HTTP's error statuses


# --- the fields of an error ----------------------------------------------------------------------------------------


def _parse_body(body: bytes) -> Any:
    try:
        data = parse_json(body, MAX_ENTRIES)
    except (ValueError, UnicodeDecodeError):
        return None
    # Gemini sends an array also for an error, if the request was for a stream.
    return data[0] if isinstance(data, list) and data else data


def _message_and_code(data: Any) -> tuple[str, str]:
    """Find the message and the code or type of an error, in the places where providers put them."""
    if isinstance(data, str):
        return _shorten(data), ""
    if not isinstance(data, dict):
        return "", ""
    error = _error_in(data)
    if isinstance(error, str):
        return _shorten(error), ""
    if not isinstance(error, dict):
        return "", ""
    # OpenAI and Anthropic use `message`, FastAPI uses `detail` with `msg`, xAI uses `error`.
    message = next((error[name] for name in _MESSAGE_ENTRIES if _is_message(error.get(name))), "")
    code = next((error[name] for name in ("code", "type", *_CODE_ENTRIES) if _is_code(error.get(name))), "")
    return _shorten(f"{_as_text(message)}{_upstream_message(error)}"), _shorten(str(code))


def _error_in(data: Mapping[str, Any]) -> Any:
    """Return what describes the error in an object that reports one: an entry of it, or the object itself."""
    if _failed_status(data.get(_BASE_RESPONSE)):
        return data[_BASE_RESPONSE]
    error = next((data[name] for name in ("error", "errors") if data.get(name)), None)
    if error is None and isinstance(data.get("detail"), dict):
        error = data["detail"]
    # Some services send a list of errors; the first one is the cause.
    return error[0] if isinstance(error, list) else data if error is None else error


def _places(data: Any) -> list[Mapping[str, Any]]:
    """Return the objects that may have entries about an error, the innermost one first."""
    if not isinstance(data, dict):
        return []
    error = _error_in(data)
    if error is data.get(_BASE_RESPONSE) and isinstance(error, dict):
        code = error.get("status_code")
        error = {**error, "status_code": _BASE_CODES.get(code, code) if isinstance(code, int) else code}
    return [place for place in (error, data) if isinstance(place, dict)]


def _is_message(message: object) -> bool:
    return isinstance(message, str | list | dict) and bool(message)


def _upstream_message(error: Mapping[str, Any]) -> str:
    """Return the message of the service behind a router, which OpenRouter puts into `metadata.raw`."""
    metadata = error.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    return f": {raw}" if isinstance(raw, str) and raw else ""


def _is_code(code: object) -> bool:
    return bool(code) and isinstance(code, str | int) and not isinstance(code, bool)


def _as_text(message: object) -> str:
    try:
        return message if isinstance(message, str) else format_json(message).decode()
    except ValueError:  # nested too deeply to be shown
        return ""


def _with_code(message: str, code: str) -> str:
    if not message or not code or code in message:
        return message or code
    return f"{message} ({code})"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_EXCERPT else f"{text[:_MAX_EXCERPT]}…"


def _wait(headers: Mapping[str, str], data: Any) -> float | None:
    """Return the seconds to wait, from the headers or else from the body: an entry, `google.rpc.RetryInfo`, or the message."""
    seconds = retry_after(headers)
    if seconds is not None:
        return seconds
    for place in _places(data):
        for name, scale in _WAITS.items():
            wait = place.get(name)
            if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 <= wait < _MAX_WAIT:
                return wait / scale
        details = place.get("details")
        delays = (
            [each.get("retryDelay") for each in details if isinstance(each, dict)] if isinstance(details, list) else []
        )
        match = next((_SECONDS.fullmatch(delay) for delay in delays if isinstance(delay, str)), None)
        if match:
            return float(match[1])
    told = _TOLD_WAIT.search(_message_and_code(data)[0])
    return sum([float(number) * _UNITS[unit[:2].lower()] for number, unit in _TIME.findall(told[1])]) if told else None


_WAITS: Mapping[str, float] = {"retry_after": 1, "retryAfter": 1, "retry_after_seconds": 1, "retry_after_ms": 1000}
"""The entries for the time to wait, each with its units in a second."""
_MAX_WAIT = 1e9
_TIME = re.compile(
    r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(ms|milliseconds?|h|hours?|m|min(?:ute)?s?|s|sec(?:ond)?s?)(?![a-z])",
    re.IGNORECASE,
)
# OpenAI says "Please try again in 1m2.5s", Gemini "Please retry in 20s".
_TOLD_WAIT = re.compile(
    r"\b(?:try again|retry|retrying|wait)(?: in| after| for)? ((?:[0-9]{1,6}(?:\.[0-9]{1,6})? ?[a-z]{1,12}(?: |(?=[0-9]))?){1,3})",
    re.IGNORECASE,
)
_UNITS: Mapping[str, float] = {"ms": 0.001, "h": 3600, "ho": 3600, "m": 60, "s": 1, "se": 1, "mi": 60}


def _redirection(status: int, headers: Mapping[str, str]) -> str:
    """Describe where a response redirects to; empty if it does not."""
    target = headers.get("location", "").partition("?")[0]  # the query may hold a secret
    if not target or not _FIRST_REDIRECTION <= status < _FIRST_CLIENT_ERROR:
        return ""
    return f"it redirects to {_shorten(target)}, which is not followed; is the base_url correct?"


def _request_id_in(data: Any) -> str | None:
    value = data.get("request_id") if isinstance(data, dict) else None
    return value if isinstance(value, str) else None


def _excerpt(body: bytes) -> str:
    """Describe a body that is not JSON, on one line."""
    # The excerpt of a large body is taken from its beginning, without decoding all of it.
    text = body[: 4 * _MAX_EXCERPT].decode("utf-8", "replace")
    if re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
        return "an HTML page" + (f" titled {title.group(1).strip()!r}" if title else "")
    return " ".join(text.split())[:_MAX_EXCERPT] or "nothing"
