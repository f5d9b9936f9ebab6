"""Templates of addresses are matched alike with each generation of the SDK, which has them or not."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop.errors import ConfigurationError
from agentloop.mcp.offers import Resource
from agentloop.mcp.sdk import server

MATCHES = [
    ("notes://{name}", "notes://a", {"name": "a"}),
    ("notes://{name}", "notes://a%20b", {"name": "a b"}),
    ("notes://{name}", "notes://a/b", None),
    ("notes://{name}", "other://a", None),
    ("notes://{name}/text", "notes://a/text", {"name": "a"}),
    ("notes://{name}/text", "notes://a", None),
    ("notes://{name}/text", "notes:///text", {"name": ""}),
    ("files://{+path}", "files://a/b.md", {"path": "a/b.md"}),
    ("files://{+path}", "files://a?b", None),
    ("files://{folder}/{+path}", "files://a/b/c", {"folder": "a", "path": "b/c"}),
    ("files://{+path}/{name}", "files://a/b/c", {"path": "a/b", "name": "c"}),
    ("files://{+path}.{ending}", "files://a.b/c.d", {"path": "a.b/c", "ending": "d"}),
    ("x://{a}-{b}", "x://1-2-3", {"a": "1-2", "b": "3"}),
    ("x://{a}-{b}", "x://12", None),
    ("x://{a}", f"x://{'y' * 70_000}", None),
]
"""Templates, addresses, and the variables of an address that is one of the template."""


def parse(uri: str) -> Any:
    """Return the template of a resource at an address."""
    return server._parse_template(Resource(uri, "r", "", "", lambda: None, ()))


@pytest.mark.parametrize(("template", "uri", "expected"), MATCHES)
def test_variables_are_found(template: str, uri: str, expected: dict[str, str] | None) -> None:
    """`{name}` is text without a slash, and `{+path}` a path; the first variable takes as much as it can."""
    assert parse(template).match(uri) == expected


@pytest.mark.parametrize("template", ["x://{a}{b}", "x://{a", "x://{+a}/{+b}", "x://{a}/{a}"])
def test_ambiguous_templates_are_refused(template: str) -> None:
    """A template that could be matched in several ways is an error where it is served."""
    with pytest.raises(ConfigurationError, match="is no template"):
        parse(template)
