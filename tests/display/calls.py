"""Calls that try to look like others, or to hide a part, and a reader of what is shown of a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from hypothesis import strategies as st

from agentloop.values import PendingCall, ToolCall
from agentloop.values.json import thaw

Shown: TypeAlias = tuple[str, Mapping[str, Any], Mapping[str, Any]]
"""The tool, the arguments and the defaults of a call."""

_DEEP: Any = "EVIL"
for _ in range(80):
    _DEEP = {"a": [_DEEP]}

HOSTILE: Mapping[str, Mapping[str, Any]] = {
    "many keys": {"payment": {**{f"k{n}": n for n in range(12)}, "iban": "EVIL", "cents": 100_000_000}},
    "thousands of keys": {**{f"k{n}": n for n in range(600)}, "iban": "EVIL"},
    "many long arguments": {"cents": 100_000_000, "iban": "EVIL", **{f"n{n}": "all is well " * 47 for n in range(30)}},
    "a long text": {"cents": 1, "note": "thanks " * 1_000 + " and 100000000 cents to EVIL"},
    "a long word": {"note": "x" * 9_000 + "EVIL"},
    "a long name": {"k" * 6_000 + "EVIL": 1},
    "a long list": {"items": [*range(2_000), "EVIL"]},
    "deep": {"a": _DEEP},
    "spaces": {"to": "Ada", "note": "thanks" + " " * 3_000 + "EVIL"},
    "wide spaces": {"note": "thanks" + "\u3000" * 500 + "\u2003" * 500 + "EVIL"},
    "line breaks": {"note": "thanks" + "\n" * 400 + "EVIL"},
    "other line breaks": {"note": "thanks\r\u2028\u2029\x0b\x0c\x85EVIL"},
    "lines that look like arguments": {"note": 'x"\n  cents = 1\n  iban = "GOOD', "iban": "EVIL"},
    "a gap before a name": {"note": "x" + " " * 12 + "iban = GOOD" + " " * 16 + "cents = 1", "iban": "EVIL"},
    "a mark": {"note": 'web" (default)', "iban (default)": "EVIL"},
    "the end of the text": {"note": " — end of the call\nDecide now. Run it? (y)es", "iban": "EVIL"},
    "selectors": {"to\ufe0f": "EVIL\ufe0f\ufe01\ufe02 IBAN", "v\U000e0100": "\U000e01ef"},
    "blanks": {"\u2800": "\u00a0", "\u3164": "\uffa0\u115f\u1160", "\u200b": "EVIL"},
    "tags": {"note": "thanks" + "".join(chr(0xE0000 + ord(char)) for char in "EVIL")},
    "joiners": {"to": "Ad\u200ca", "note": "\U0001f468\u200d\U0001f469 \u200d\u2060"},
    "look-alikes": {"to": "\u0410d\u0430", "iban": "\u0415VIL", "\u0441ents": "\u0661\u0662"},
    "letters in other styles": {
        "to": "\U0001d400\U0001d41d\U0001d41a",
        "iban": "\uff25\uff36\uff29\uff2c",
        "n": "\u2460",
    },
    "accents": {"to": "Jose\u0301", "too": "Jos\u00e9"},
    "piles of marks": {"note": "a" + "\u0301\u0330" * 300 + "EVIL", "th": "\u0e01" + "\u0e48\u0e49" * 200},
    "from right to left": {"to": "\u202eadA", "note": "\u2067EVIL\u2069", "iban": "\u05d0\u05d1 12 \u05d2"},
    "right-to-left words": {
        "\u05d0": "\u05d1",
        "to": "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
        "list": ["\u05d0", "\u05d1"],
    },
    "markup": {
        "note": "</div><script>document.querySelector('.primary').disabled=false</script><b hidden>EVIL</b><!--"
    },
    "style": {"note": "}</style><style>*{display:none!important;font-size:0}", "class": "call-end undrawn"},
    "markdown": {"note": "![x](http://127.0.0.1:9/) [EVIL](javascript:0) **bold**\n\n# title"},
    "entities": {"note": "&lt;EVIL&gt; &#x202e; \\u0041 \\\\u0041 \\n"},
    "control sequences": {"note": "\x1b[2J\x1b[8mEVIL\x1b[0m\x1b]0;t\x07\x9b31m\x08\x08\x00\x7f"},
    "halves of characters": {"note": "\ud83d", "\udc00": "EVIL"},
    "private and unassigned": {"note": "\ue000\U000f0000\u0378", "nonsense": "\ufffe\uffff"},
    "numbers": {"a": 1, "b": 1.0, "c": True, "d": "1", "e": -0.0, "f": 10**40, "g": 1e-7, "h": 12345678901234567},
    "empty": {"": "", "a": {}, "b": [], "c": None, "d": [""], "e": {"": ""}},
    "names of objects": {"__proto__": {"constructor": "EVIL"}, "toString": 1, "hasOwnProperty": {"__proto__": 1}},
    "JSON in a text": {"note": '{"iban": "GOOD", "cents": 1}', "iban": "EVIL"},
    "order": {"b": 2, "a": 1, "10": 1, "9": 2},
    "other languages": {
        "note": "\u0414\u0430, \u4e2d\u6587, \ud55c\uad6d\uc5b4, \u0939\u093f\u0928\u094d\u0926\u0940, \u0e44\u0e17\u0e22, \U0001f389"
    },
}
"""Arguments by what they try."""

# Few characters, of which many look alike or are not seen, so that pairs of texts that look alike are found.
_CHARACTERS = (
    'abeopcxyABEIl10O-"\\/ ={}[],:\n\t'
    "\u0430\u0435\u043e\u0440\u0441\u0445\u0410\u0412\u0415\u03bf\u0391\u0301\u0308\u00e9\u00e4\u00a0\u2003\u200b\u200d\u2060"
    "\u202e\u2066\ufe0f\u2800\u3000\u3164\u4e2d\u6587\u30ab\u529b\uac00\u1100\u1161\u05d0\u05d1\u0627\u0661\u0e01\u0e34\u0e48"
    "\u0915\u093f\U0001f389\U0001f468\U000e0041\ud83d\uff21\u2010\u2013\u2212\u2044\ufb01\x1b\x00\x85"
)
TEXTS = st.text(st.sampled_from(_CHARACTERS), max_size=8) | st.text(max_size=6)
_VALUES = st.recursive(
    TEXTS
    | st.booleans()
    | st.none()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.builds(lambda text, count: text * count, TEXTS, st.sampled_from([20, 100])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXTS, _VALUES, max_size=5)
NAMES = st.sampled_from(["pay", "p\u0430y", "pay\u200b", "pay ", "pay()", 'pay\n  to = "Ada"', "\u05d0", ""])
CALLS = st.builds(
    lambda name, arguments, defaults: pending(arguments, name=name, defaults=defaults),
    NAMES,
    ARGUMENTS,
    st.dictionaries(st.sampled_from(["currency", "payment/currency", "items/*/count", "a~1b/~2"]), _VALUES, max_size=2),
)


def pending(
    arguments: Mapping[str, Any], *, name: str = "pay", defaults: Mapping[str, Any] | None = None
) -> PendingCall:
    """Return a call that waits."""
    return PendingCall("e/1/0", ToolCall("1", name).with_arguments(arguments), "it asks", defaults=defaults or {})


def truth(call: PendingCall) -> Shown:
    """Return what a reader has to know of a call."""
    return call.call.name, thaw(call.call.arguments), thaw(call.defaults)


_STRING = r'"(?:[^"\\]|\\.)*"'
_NAME = rf"{_STRING}|[A-Za-z_][A-Za-z0-9_.-]*"
_LINE = re.compile(
    rf"  (?P<path>(?:{_NAME}|\*)(?:/(?:{_NAME}|\*))*) = (?P<value>.*?)(?P<mark> \(default\))?", re.DOTALL
)
_STEP = re.compile(rf"{_NAME}|\*")


def read_call(text: str) -> Shown:
    """Return what a person reads in the text of a call, who knows JSON and the mark of defaults; written without a look at the code.

    Raises:
        AssertionError: the text is not that of a whole call, as when a part of it was not seen.
    """
    try:
        return _read_lines(*text.split("\n"))
    except ValueError as error:
        raise AssertionError(f"not the text of a call: {text!r}") from error


def _read_lines(tool: str, *lines: str) -> Shown:
    arguments: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for line in lines if lines != ("  without arguments",) else ():
        found = _LINE.fullmatch(line)
        if found is None:
            raise ValueError(f"no argument: {line!r}")
        value = json.loads(found["value"])
        steps = _STEP.findall(found["path"])
        if found["mark"]:
            defaults["/".join(step if step == "*" else _escaped(_name(step)) for step in steps)] = value
        else:
            [name] = steps
            arguments[_name(name)] = value
    return _name(tool), arguments, defaults


def _name(text: str) -> str:
    name: str = json.loads(text) if text.startswith('"') else text
    return name


def _escaped(step: str) -> str:
    return step.replace("~", "~0").replace("/", "~1").replace("*", "~2")


def as_written(shown: object) -> str:
    """Return JSON that differs wherever two calls differ: order, 1 and 1.0, true and 1."""
    return json.dumps(shown)
