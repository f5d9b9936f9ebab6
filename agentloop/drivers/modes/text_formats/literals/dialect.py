"""Ways of writing values, and what each of them may write without a fault."""

from __future__ import annotations

from attrs import frozen

SINGLE_QUOTES = "single quotes"
TRIPLE_QUOTES = "triple quotes"
QUOTED_BY_TOKEN = "quote token"  # noqa: S105  # no secret: the name of a repair
TRAILING_COMMA = "trailing comma"
COMMENT = "comment"
MISSING_BRACKET = "missing closing bracket"
PYTHON_LITERAL = "Python literal"
UNQUOTED_KEY = "unquoted key"
RAW_NEWLINE = "unescaped newline"
ESCAPED_UNDERSCORE = "escaped underscore"
STRAY_BACKSLASH = "stray backslash"


@frozen
class Dialect:
    """What a notation writes as a matter of course; everything else that is understood is a repair and is noted.

    Attributes:
        native: the names of repairs that are none in this notation.
        python: whether escapes such as those by hexadecimal digits mean what they mean in Python.
    """

    native: frozenset[str] = frozenset()
    python: bool = False


JSON = Dialect()
PYTHON = Dialect(
    frozenset({SINGLE_QUOTES, TRIPLE_QUOTES, TRAILING_COMMA, COMMENT, PYTHON_LITERAL, UNQUOTED_KEY}), python=True
)
TOKEN_QUOTED = Dialect(frozenset({QUOTED_BY_TOKEN, UNQUOTED_KEY}))
"""Objects as the Gemma family writes them: unquoted keys, and a special token where JSON has a quotation mark."""
