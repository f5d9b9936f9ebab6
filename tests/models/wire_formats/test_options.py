"""Tests of the options in each wire format, which the table in the documentation describes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, fields

from agentloop.errors import BadRequest, ConfigurationError, UnsupportedOption
from agentloop.models import LLMConfig, WireFormat
from agentloop.models.wire_formats.wire_format import WIRE_FORMATS, wire_format
from agentloop.values import (
    HostedTool,
    InferenceOptions,
    InferenceRequest,
    Message,
    ResponseFormat,
    ToolChoice,
    ToolSpec,
)

_PAGE = Path(__file__).parents[3] / "docs" / "models.md"
_SCHEMA = {"type": "object", "properties": {}, "additionalProperties": False}
_BARE = InferenceRequest((Message.user("hi"),), tools=(ToolSpec("add", "Add.", _SCHEMA),))
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_VALUES: Mapping[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.25,
    "max_tokens": 7,
    "stop": ("END",),
    "seed": 0,
    "top_logprobs": 3,
    "extra": {"anything": 1},
}
"""The values of the options that the table does not write out."""
_NAMES = {"HostedTool": HostedTool, "ResponseFormat": ResponseFormat, "ToolChoice": ToolChoice, "SCHEMA": _SCHEMA}


def _table() -> tuple[list[str], dict[str, list[str]]]:
    """Return the wire formats of the table, and its cells by option."""
    lines = _PAGE.read_text("utf-8").split("## Options", 1)[1].splitlines()
    table = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), lines))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return [cell.strip("`") for cell in rows[0][1:]], {row[0]: row[1:] for row in rows[2:]}


_FORMATS, _ROWS = _table()
_CASES = [(option, name, cells[_FORMATS.index(name)]) for option, cells in _ROWS.items() for name in _FORMATS]


def _option(label: str) -> tuple[str, Any]:
    """Return the name and the value of the option of a row, such as `seed` or `logprobs=True`."""
    name, sign, value = label.strip("`").partition("=")
    return name, eval(value, dict(_NAMES)) if sign else _VALUES[name]  # of our own page


def _with_option(request: InferenceRequest, name: str, value: Any) -> InferenceRequest:
    if name in {field.name for field in fields(InferenceOptions)}:
        return request.with_options(evolve(request.options, **{name: value}))
    changed: InferenceRequest = evolve(request, **{name: value})
    return changed


def _config(name: str) -> LLMConfig:
    return LLMConfig(model="m", base_url="http://localhost", wire_format=name, api_key="k")


def _body(request: InferenceRequest, encoder: WireFormat) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(encoder.encode_request(request, _config(encoder.name)).body)
    return body


def _changes(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the entries of a body that differ, each with its path; an entry that is gone has the value None."""
    if isinstance(before, dict) and isinstance(after, dict) and before:
        for name in {**before, **after}:
            yield from _changes(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    elif isinstance(before, list) and isinstance(after, list) and len(before) <= len(after):
        for index, item in enumerate(before):
            yield from _changes(item, after[index], f"{path}[{index}]")
        for item in after[len(before) :]:
            yield f"{path}[]", item
    elif before != after:
        yield path, after


def _flatten(path: str, value: Any, stops: set[str]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value and path not in stops:
        for name, inner in value.items():
            yield from _flatten(f"{path}.{name}", inner, stops)
    else:
        yield path, value


def _expected(cell: str, value: Any) -> dict[str, Any]:
    """Return the entries that a cell promises: `path` for the value itself, `path: json` for another one."""
    entries = {}
    for code in re.findall(r"`([^`]+)`", cell):
        path, sign, text = code.partition(": ")
        compact = json.dumps(json.dumps(_SCHEMA, separators=(",", ":")))
        written = text.replace("SCHEMA", json.dumps(_SCHEMA)).replace("TEXT", compact) if sign else json.dumps(value)
        entries[path] = json.loads(written)
    return entries


@pytest.mark.parametrize(("label", "name", "cell"), _CASES)
def test_an_option_is_sent_translated_or_refused_as_documented(label: str, name: str, cell: str) -> None:
    """Each cell of the table holds: exactly the named entries of the body change, or the option is refused by its name."""
    encoder, (option, value) = wire_format(name), _option(label)
    request = _with_option(_BARE, option, value)
    if cell == "refused":
        with pytest.raises(UnsupportedOption, match=rf"has no equivalent of the option {option}\b.*; ") as raised:
            encoder.encode_request(request, _config(name))
        assert (raised.value.option, raised.value.wire_format) == (option, name)
        return
    expected = {} if cell == "no effect" else _expected(cell, value)
    assert expected or cell == "no effect"
    changes = _changes(_body(_BARE, encoder), _body(request, encoder))
    flat = dict(entry for path, changed in changes for entry in _flatten(path, changed, set(expected)))
    assert flat == expected


def test_the_table_is_complete() -> None:
    """It has a column for each wire format, and a row for each option, effort, tool choice and hosted tool."""
    assert list(WIRE_FORMATS) == _FORMATS
    named = {_option(label)[0] for label in _ROWS}
    of_options = {field.name for field in fields(InferenceOptions)} - {"model"}
    assert named == of_options | {"tool_choice", "parallel_tool_calls", "response_format"}
    for effort in _EFFORTS:
        assert f'`reasoning_effort="{effort}"`' in _ROWS
    kinds = {value.kind for name, value in map(_option, _ROWS) if name == "tool_choice"}
    assert kinds == {"auto", "none", "required", "specific"}
    hosted = {tool.kind for name, tools in map(_option, _ROWS) if name == "hosted_tools" for tool in tools}
    assert hosted == {"web_search", "code_execution", "file_search"}


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_an_option_of_the_configuration_counts_like_one_of_the_request(name: str) -> None:
    """What a format refuses in a request, it refuses in the configuration."""
    encoder = wire_format(name)
    for label in _ROWS:
        option, value = _option(label)
        if option not in {field.name for field in fields(InferenceOptions)}:
            continue
        options = InferenceOptions(**{option: value})
        outcomes = []
        for request, config in (
            (_BARE.with_options(options), _config(name)),
            (_BARE, _config(name).with_settings(options=options)),
        ):
            try:
                outcomes.append(json.loads(encoder.encode_request(request, config).body))
            except BadRequest as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", WIRE_FORMATS)
def test_defaults_are_never_refused(name: str) -> None:
    """A request without options is sent in every format, with and without tools."""
    for request in (_BARE, _BARE.with_tools(()), _with_option(_BARE, "cache_prompt", value=True)):
        assert _body(request, wire_format(name))


def test_top_logprobs_are_limited() -> None:
    """The number of alternatives is from 0 to 20, as at the providers."""
    for number in (-1, 21):
        with pytest.raises(ConfigurationError, match="top_logprobs is a number from 0 to 20"):
            InferenceOptions(top_logprobs=number)
