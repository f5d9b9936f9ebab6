"""Tests of typed errors for HTTP statuses, headers and bodies."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import (
    AuthenticationError,
    BadRequest,
    ContextLengthExceeded,
    InferenceError,
    InvalidResponse,
    ProviderUnavailable,
    RateLimited,
)
from agentloop.models.wire_formats.errors import reported_error, request_id, retry_after, status_error
from tests.models.generated_requests import json_values

TOO_LONG = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "prompt is too long: 210000 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease input length",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Please reduce the length of the messages or completion.",
    "Prompt contains 70000 tokens, too large for model with 32768 maximum context length",
    "request (40217 tokens) exceeds the available context size (8192 tokens), try increasing it",
    "Invalid request: Your request exceeded model token limit: 131072",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: 5000",
    "too many tokens: size limit exceeded by 112 tokens",
    "Input is too long for requested model.",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
    "Prompt exceeds max length",
    "tokens in request more than max tokens allowed",
    "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
    "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
    "Input length (160062 tokens) exceeds the maximum allowed length (59862 tokens).",
]
NOT_TOO_LONG = [
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
    "Image exceeds the maximum size of 20 MB",
    "the number of tools exceeds the maximum of 128",
    "temperature exceeds the model's range",
    "Range of top_p should be (0.0, 1.0]",
    "The name of the function exceeds the maximum allowed length (64 characters).",
    "max_tokens exceeds the maximum allowed length",
    "The number of input tokens exceeds the tokens per minute of this deployment",
    "missing parameter: messages",
]


def body(message: str, **entries: object) -> bytes:
    """Return an error body as most providers send it."""
    return json.dumps({"error": {"message": message, **entries}}).encode()


@pytest.mark.parametrize("message", TOO_LONG)
@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_too_long_conversation_is_recognized_by_the_message_of_any_provider(message: str, status: int) -> None:
    """The providers' different messages all raise `ContextLengthExceeded`."""
    assert type(status_error(status, {}, body(message))) is ContextLengthExceeded
    assert type(reported_error(json.loads(body(message)), 200, {})) is ContextLengthExceeded


def test_a_too_long_conversation_is_recognized_by_its_code() -> None:
    """The error code decides where the message does not."""
    for code in ("context_length_exceeded", "tokens_limit_reached"):
        assert type(status_error(413, {}, body("no", code=code))) is ContextLengthExceeded


@pytest.mark.parametrize("message", NOT_TOO_LONG)
def test_other_limits_are_not_mistaken_for_the_context_length(message: str) -> None:
    """Messages about other limits raise `BadRequest`."""
    assert type(status_error(400, {}, body(message))) is BadRequest


@pytest.mark.parametrize(
    "data",
    [
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***yz."},
        {"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID"}},
        {"error": {"message": "no", "code": "invalid_api_key"}},
        {"error": "No API key provided"},
    ],
)
def test_a_refused_key_is_recognized_with_status_400(data: object) -> None:
    """Some providers refuse a key with status 400."""
    assert type(status_error(400, {}, json.dumps(data).encode())) is AuthenticationError


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"error": {"message": "m", "type": "t", "code": "c"}}, "m (c)"),
        ({"error": {"message": "m", "type": "t", "code": None}}, "m (t)"),
        ({"error": {"message": "m", "type": "t", "code": ""}}, "m (t)"),
        ({"error": {"message": "m", "code": 42}}, "m (42)"),
        ({"error": {"message": "the c of m", "code": "c"}}, "the c of m"),
        ({"error": {"code": "c"}}, '{"error": {"code": "c"}}'),
        ({"error": {"message": "m", "metadata": {"raw": "upstream"}, "code": 502}}, "m: upstream (502)"),
        ({"error": "m"}, "m"),
        ({"errors": [{"message": "m"}]}, "m"),
        ([{"error": {"message": "m", "status": "S"}}], "m (S)"),
        ({"object": "error", "message": "m", "type": "t"}, "m (t)"),
        ({"detail": "m"}, "m"),
        ({"detail": [{"loc": ["body"], "msg": "m"}]}, '[{"loc":["body"],"msg":"m"}]'),
        ("m", "m"),
        ({}, "{}"),
        ([], "[]"),
        (5, "5"),
        (None, "null"),
    ],
)
def test_the_message_is_found_where_providers_put_it(data: object, message: str) -> None:
    """Message and code are read from all known places; without them, the error quotes the body."""
    error = status_error(400, {}, json.dumps(data).encode())
    assert str(error) == f"the provider responded with HTTP 400: {message}"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (b"", "nothing"),
        (b"  \n ", "nothing"),
        (b"upstream\n  connect error", "upstream connect error"),
        (b"<!DOCTYPE html><html><head><title> 502 Bad\nGateway </title>", "an HTML page titled '502 Bad\\nGateway'"),
        (b"<html><body>", "an HTML page"),
        (b"\xff\xfe", "��"),
    ],
)
def test_a_body_that_is_not_json_is_shown_on_one_line(page: bytes, message: str) -> None:
    """HTML pages are named by their title, and other text is quoted."""
    error = status_error(502, {}, page)
    assert str(error) == f"the provider responded with HTTP 502: {message}"
    assert "\n" not in str(error)


@pytest.mark.parametrize("text", ["x" * 10_000, "token count " * 1000])
@pytest.mark.parametrize("place", ["message", "code", "error", "page"])
def test_long_messages_are_truncated(text: str, place: str) -> None:
    """The length of an error message is limited."""
    content = {
        "message": body(text),
        "code": body("m", code=text),
        "error": json.dumps({"error": text}).encode(),
        "page": text.encode(),
    }[place]
    assert len(str(status_error(400, {}, content))) < 1200
    assert len(str(reported_error({"error": text}, 200, {}))) < 1200


@pytest.mark.parametrize(
    ("error_object", "kind", "status"),
    [
        ({"message": "m", "code": 429}, RateLimited, 429),
        ({"message": "m", "code": "503"}, ProviderUnavailable, 503),
        ({"message": "m", "code": 401}, AuthenticationError, 401),
        ({"message": "Rate limit reached"}, RateLimited, 200),
        ({"message": "You exceeded your current quota"}, RateLimited, 200),
        ({"message": "m", "type": "insufficient_quota"}, RateLimited, 200),
        ({"message": "Invalid API key"}, AuthenticationError, 200),
        ({"message": "m", "type": "authentication_error"}, AuthenticationError, 200),
        ({"message": "m", "type": "overloaded_error"}, ProviderUnavailable, 200),
        ({"message": "Internal error encountered"}, ProviderUnavailable, 200),
        ({"message": "unknown field"}, BadRequest, 200),
        ({"message": "m", "type": "invalid_request_error"}, BadRequest, 200),
        ({"message": "m", "code": "9" * 5000}, ProviderUnavailable, 200),
        ({"message": "m", "code": 42}, ProviderUnavailable, 200),
        ({"message": "m", "status_code": 529}, ProviderUnavailable, 529),
    ],
)
def test_an_error_object_is_typed_by_its_code_or_message(
    error_object: dict[str, object], kind: type[InferenceError], status: int
) -> None:
    """Without an HTTP error status, the code or else the message determines the type, or the service has failed."""
    error = reported_error({"error": error_object}, 200, {"retry-after": "2"})
    assert (type(error), error.status, error.retry_after) == (kind, status, 2.0)


def test_an_error_object_may_contain_no_message() -> None:
    """The error says that no reason is given."""
    assert str(reported_error({"error": True}, 200, {})) == "the provider responded with an error: it gives no reason"


@pytest.mark.parametrize(
    ("status", "meaning", "kind"),
    [
        (424, None, ProviderUnavailable),
        (498, None, AuthenticationError),
        (400, 429, RateLimited),
        (429, 503, ProviderUnavailable),
    ],
)
def test_a_code_of_the_provider_can_decide_the_class(
    status: int, meaning: int | None, kind: type[InferenceError]
) -> None:
    """The error keeps the status of the response, and names the code unless the body has one."""
    error = status_error(status, {}, b'{"message": "m"}', code="Oops", meaning=meaning)
    assert (type(error), error.status) == (kind, status)
    assert str(error).endswith("m (Oops)")
    assert "Oops" not in str(status_error(status, {}, body("m", code="c"), code="Oops"))


@pytest.mark.parametrize("status", [100, 199, 301, 302, 304, 399])
def test_a_status_that_is_neither_success_nor_error_is_an_invalid_response(status: int) -> None:
    """Such a status raises `InvalidResponse`."""
    assert type(status_error(status, {}, b"")) is InvalidResponse


@pytest.mark.parametrize("name", ["x-request-id", "request-id", "apim-request-id", "x-amzn-requestid", "cf-ray"])
def test_the_request_id_is_read_from_the_headers_of_all_providers(name: str) -> None:
    """Each provider has its own header for the request id."""
    assert request_id({"server": "x", name: "r"}) == "r"
    assert request_id({"server": "x"}) is None


def test_the_request_id_in_the_body_is_the_fallback() -> None:
    """Anthropic repeats the request id in the body."""
    assert status_error(400, {}, b'{"request_id": "r"}').request_id == "r"
    assert status_error(400, {"request-id": "h"}, b'{"request_id": "r"}').request_id == "h"
    assert status_error(400, {}, b'{"request_id": 5}').request_id is None


@given(st.text(), st.text(), st.text())
@example("Mon, 01 Jan 2020 00:00:00 +99999999999999", "Mon, 01 Jan 2020 00:00:00 GMT", "")
@example("Mon, 01 Jan 99999 00:00:00 GMT", "Mon, 01 Jan 2020 00:00:00 GMT", "")
@example("Mon, 01 Jan 2020 00:00:00 -0000", "Mon, 01 Jan 2020 00:00:00 GMT", "nan")
@example("9" * 5000, "", "9" * 5000)
@example("²", "", "²")
@example(" ", " ", " ")
def test_any_header_is_a_wait_or_none(value: str, date: str, milliseconds: str) -> None:
    """No header raises or yields a negative wait."""
    for headers in ({"retry-after": value, "date": date}, {"retry-after-ms": milliseconds}):
        seconds = retry_after(headers)
        assert seconds is None or seconds >= 0


@given(st.integers(100, 599), st.binary() | json_values.map(lambda data: json.dumps(data).encode()))
@example(400, b'{"error": {"code": ' + b"9" * 4000 + b"}}")
@example(400, b'{"error": {"message": ' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}}")
@example(400, b'{"error": {"message": {"a": "\\ud800"}, "code": true}}')
@example(400, b"[" * 100_000)
def test_any_body_yields_a_typed_error(status: int, content: bytes) -> None:
    """No body prevents the creation of the error."""
    error = status_error(status, {}, content)
    assert isinstance(error, InferenceError)
    assert error.status == status
    assert str(error).startswith(f"the provider responded with HTTP {status}: ")


@given(json_values)
@example({"error": {"code": "9" * 5000}})
@example({"error": [[]]})
@example({"error": {"message": [[[1]]], "metadata": [], "code": []}})
def test_any_error_object_yields_a_typed_error(data: object) -> None:
    """No error object prevents the creation of the error."""
    assert isinstance(reported_error(data, 200, {}), InferenceError)
