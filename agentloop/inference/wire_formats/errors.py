"""Typed errors from HTTP statuses and the bodies that come with them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
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
)
from agentloop.values.inference import InferenceResponse
from agentloop.values.json import format_json, parse_json

_REQUEST_IDS = ("x-request-id", "request-id", "x-goog-request-id", "apim-request-id", "x-amzn-requestid", "cf-ray")
_TOO_LONG = re.compile(
    r"context.?(length|window|size|limit)|maximum.?(context|input|prompt|model) ?length|(prompt|input) (is )?too long"
    r"|too many (input )?tokens|token count.{0,80}exceed|exceed.{0,40}(token limit|context)|reduce the length"
    r"|tokens.{0,60}must be <=",
    re.IGNORECASE,
)
_QUOTA = re.compile(r"rate.?limit|insufficient_quota|quota|resource_exhausted|too.many.requests", re.IGNORECASE)
_KEY = re.compile(
    r"api.?key.{0,12}(invalid|not valid|incorrect|expired|missing)|(invalid|incorrect|expired|missing).{0,12}api.?key"
    r"|\bno api.?key",
    re.IGNORECASE,
)
_LOCKED_OUT = re.compile(r"invalid.{0,12}key|authentication|unauthorized|permission", re.IGNORECASE)
_OVERLOADED = re.compile(r"overloaded|unavailable|internal|server_error|api_error|timeout", re.IGNORECASE)
_SECONDS = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)s")
_SHOWN = 500
_BY_STATUS: Mapping[int, type[InferenceError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    408: ProviderUnavailable,
    409: ProviderUnavailable,
    425: ProviderUnavailable,
    429: RateLimited,
}
_FIRST_ERROR, _FIRST_SERVER_ERROR = 400, 500


def request_id(headers: Mapping[str, str]) -> str | None:
    """Return the provider's id of the request, or None."""
    return next((headers[name] for name in _REQUEST_IDS if name in headers), None)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return how many seconds the provider asks to wait, or None.

    Understands `retry-after-ms`, and `Retry-After` in seconds or as a date, which is counted from the answer's own `Date`.
    """
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        value = headers.get("retry-after", "").strip()
        if not value:
            return None
        if value.replace(".", "", 1).isdecimal():
            return float(value)
        return max(0.0, (parsedate_to_datetime(value) - parsedate_to_datetime(headers["date"])).total_seconds())
    except (ValueError, TypeError, LookupError, ArithmeticError):  # what comes of dates that are none
        return None


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> InferenceError:
    """Make the typed error of an answer whose status says that it is one."""
    data = _parsed(body)
    message, code = _told(data)
    message = message or _page(body)
    return _typed(status, f"{code} {message}")(
        f"the provider answered with HTTP {status}: {_with_code(message, code)}",
        status=status,
        request_id=request_id(headers) or _id_in(data),
        retry_after=_wait(headers, data),
    )


def error_in_answer(data: Any, status: int, headers: Mapping[str, str]) -> InferenceError:
    """Make the typed error of an error object that came in an answer of status 200, or in a stream."""
    message, code = _told(data)
    named = data.get("error") if isinstance(data, dict) else None
    number = _number(named.get("code") if isinstance(named, dict) else None) or _number(code)
    kind = _typed(number, f"{code} {message}") if number else _by_words(f"{code} {message}")
    return kind(
        f"the provider answered with an error: {_with_code(message, code) or 'it gives no reason'}",
        status=number or status,
        request_id=request_id(headers) or _id_in(data),
        retry_after=_wait(headers, data),
    )


def not_an_answer(why: str, status: int, headers: Mapping[str, str], body: bytes = b"") -> InvalidResponse:
    """Make the error of an answer that is none."""
    shown = f": {_page(body)}" if body else ""
    return InvalidResponse(f"{why}{shown}", status=status, request_id=request_id(headers))


def _wait(headers: Mapping[str, str], data: Any) -> float | None:
    """Return how many seconds to wait: as the headers say, else as `google.rpc.RetryInfo` in the body does."""
    asked = retry_after(headers)
    error = data.get("error") if isinstance(data, dict) else None
    details = error.get("details") if isinstance(error, dict) else None
    if asked is not None or not isinstance(details, list):
        return asked
    delays = [detail.get("retryDelay") for detail in details if isinstance(detail, dict)]
    found = next((_SECONDS.fullmatch(delay) for delay in delays if isinstance(delay, str)), None)
    return float(found[1]) if found else None


def _typed(status: int, told: str) -> type[InferenceError]:
    kind = _BY_STATUS.get(status)
    if kind is not None:
        return kind
    if status >= _FIRST_SERVER_ERROR:
        return ProviderUnavailable
    if status < _FIRST_ERROR:
        return InvalidResponse
    if _TOO_LONG.search(told):
        return ContextLengthExceeded
    return AuthenticationError if _KEY.search(told) else BadRequest


def _by_words(told: str) -> type[InferenceError]:
    for pattern, kind in (
        (_TOO_LONG, ContextLengthExceeded),
        (_QUOTA, RateLimited),
        (_KEY, AuthenticationError),
        (_LOCKED_OUT, AuthenticationError),
        (_OVERLOADED, ProviderUnavailable),
    ):
        if pattern.search(told):
            return kind
    return BadRequest


def _parsed(body: bytes) -> Any:
    try:
        data = parse_json(body)
    except (ValueError, UnicodeDecodeError):
        return None
    return data[0] if isinstance(data, list) and data else data


def _told(data: Any) -> tuple[str, str]:
    """Find the message and the code or type of an error, in the places where providers put them."""
    if isinstance(data, str):
        return _shortened(data), ""
    if not isinstance(data, dict):
        return "", ""
    error = data.get("error", data.get("errors", data))
    if isinstance(error, list):
        error = error[0] if error else {}
    if isinstance(error, str):
        return _shortened(error), ""
    if not isinstance(error, dict):
        return "", ""
    message = next((error[name] for name in ("message", "msg", "detail", "error") if error.get(name)), "")
    code = next((error[name] for name in ("code", "type", "status") if _is_code(error.get(name))), "")
    return _shortened(f"{_as_text(message)}{_passed_on(error)}"), _shortened(str(code))


def _passed_on(error: Mapping[str, Any]) -> str:
    """Find what the service behind a router said, where the router passes it on."""
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


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _number(code: object) -> int:
    if isinstance(code, str) and re.fullmatch("[45][0-9]{2}", code):
        code = int(code)
    return code if isinstance(code, int) and 400 <= code < 600 else 0  # noqa: PLR2004  # HTTP's error statuses


def _id_in(data: Any) -> str | None:
    found = data.get("request_id") if isinstance(data, dict) else None
    return found if isinstance(found, str) else None


def _page(body: bytes) -> str:
    """Show what came instead of an answer, on one line."""
    text = body[: 4 * _SHOWN].decode("utf-8", "replace")
    if re.match(r"\s*<(!doctype|html)", text, re.IGNORECASE):
        title = re.search(r"<title[^>]*>([^<]*)", text, re.IGNORECASE)
        return "an HTML page" + (f" titled {title.group(1).strip()!r}" if title else "")
    return " ".join(text.split())[:_SHOWN] or "nothing"


OTHER_SHAPE = (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError)
"""What comes of looking for something where it is not."""

_OK = range(200, 300)


def read_whole_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    failure: Callable[[Any], object],
    read: Callable[[Any], InferenceResponse],
    what: str,
) -> InferenceResponse:
    """Read an answer.

    Args:
        status: the HTTP status.
        headers: the HTTP headers, by names in lower case.
        body: the whole body.
        failure: finds in the JSON what tells an error; None or something empty when nothing does.
        read: reads the JSON of an answer; what is not of its shape may raise whatever comes of looking for it.
        what: what an answer is called, for errors.

    Raises:
        InferenceError: typed by status and body.
    """
    if status not in _OK:
        raise error_of(status, headers, body)
    try:
        data = parse_json(body)
    except ValueError as error:
        raise not_an_answer(f"the answer is not JSON ({error})", status, headers, body) from error
    failed = failure(data)
    if failed:
        raise error_in_answer(failed, status, headers)
    try:
        return read(data)
    except OTHER_SHAPE as error:
        raise not_an_answer(f"the answer has not the shape of {what}", status, headers, body) from error
