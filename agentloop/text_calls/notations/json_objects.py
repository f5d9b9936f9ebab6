"""Which calls a JSON object stands for."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Final

from attrs import evolve

from agentloop.text_calls.literal_reader import LiteralReader
from agentloop.text_calls.literals import ReadContainer, ReadObject
from agentloop.text_calls.notations.elements import draft_of, name_at, python_call, read_value
from agentloop.text_calls.offered_tools import OfferedTools
from agentloop.text_calls.openings import LONGEST_NAME
from agentloop.text_calls.reading import Draft, Outcome
from agentloop.text_calls.source import Source, Steps, after_space, literal_at
from agentloop.values.json import parse_json

NAME_KEYS: Final = ("name", "tool_name", "function_name", "tool", "function", "action")
ARGUMENT_KEYS: Final = (
    "arguments",
    "parameters",
    "args",
    "params",
    "input",
    "tool_input",
    "tool_arguments",
    "action_input",
    "tool_args",
    "kwargs",
)
WRAPPING_KEYS: Final = ("tool_calls", "tool_call", "function_calls", "function_call", "calls")
BESIDE_KEYS: Final = frozenset({"id", "type", "index", "tool_call_id", "call_id"})
ARGUMENTS_AS_TEXT: Final = "arguments as text"

_DEEPEST: Final = 4


class CallsInJson:
    """Tells the calls in a value that was read from a text.

    With `explicit`, the notation around the value said already that it is a call, so the names need not be offered.
    """

    def __init__(self, reader: LiteralReader, source: Source, tools: OfferedTools, *, explicit: bool) -> None:
        self._reader = reader
        self._source = source
        self._tools = tools
        self._explicit = explicit

    def drafts(self) -> list[Draft]:
        """Return the calls, none when the value is something else; those in a larger object end with it."""
        value = self._reader.value
        found = [] if value is None else self._in(value, explicit=self._explicit, deepest=_DEEPEST)
        return [evolve(draft, end=self._reader.at) for draft in found]

    def _in(self, node: object, *, explicit: bool, deepest: int) -> Iterator[Draft]:
        if not deepest:
            return
        if isinstance(node, list):
            for item in node:
                yield from self._in(item, explicit=explicit, deepest=deepest - 1)
        elif isinstance(node, ReadObject):
            yield from self._in_object(node, explicit=explicit, deepest=deepest)

    def _in_object(self, node: ReadObject, *, explicit: bool, deepest: int) -> Iterator[Draft]:
        inner = next((node[key] for key in WRAPPING_KEYS if isinstance(node.get(key), ReadContainer)), None)
        if inner is not None:
            yield from self._in(inner, explicit=True, deepest=deepest - 1)
            return
        inner = next((node[key] for key in NAME_KEYS if isinstance(node.get(key), ReadObject)), None)
        if inner is not None:
            yield from self._in(inner, explicit=explicit, deepest=deepest - 1)
            return
        draft = self._named(node, explicit=explicit) or self._single_key(node)
        if draft is not None:
            yield draft

    def _named(self, node: ReadObject, *, explicit: bool) -> Draft | None:
        name_key = next((key for key in NAME_KEYS if isinstance(node.get(key), str)), None)
        if name_key is None:
            return None
        name = str(node[name_key])
        known = self._tools.knows(self._tools.plain_name(name))
        argument_key = next((key for key in ARGUMENT_KEYS if key in node), None)
        if not name or len(name) > LONGEST_NAME or any(letter.isspace() for letter in name):
            return None
        if argument_key is None:
            return self._without_arguments(node, name, name_key) if known or explicit else None
        exact = set(node) <= BESIDE_KEYS | {name_key, argument_key} and (name_key, argument_key) != (
            "name",
            "parameters",
        )
        if not (known or explicit or (exact and argument_key in {"arguments", "parameters", "args"})):
            return None
        return self._with_arguments(node, name, node[argument_key])

    def _with_arguments(self, node: ReadObject, name: str, arguments: object) -> Draft | None:
        span = node.start, node.end
        if isinstance(arguments, ReadObject):
            return (
                None
                if self._is_schema(name, arguments)
                else draft_of(name, arguments, self._reader, self._source, span)
            )
        if arguments is None or arguments == "":
            return Draft(name, {}, *span, repairs=self._reader.repairs(*span))
        if isinstance(arguments, str):
            return self._from_text(node, name, arguments)
        return None

    def _from_text(self, node: ReadObject, name: str, arguments: str) -> Draft | None:
        """Read arguments that are a JSON text within JSON, as the API of OpenAI has them."""
        try:
            parsed = parse_json(arguments)
        except ValueError:
            return None
        span = node.start, node.end
        if not isinstance(parsed, dict):
            return None
        return Draft(name, parsed, *span, repairs=(*self._reader.repairs(*span), ARGUMENTS_AS_TEXT))

    def _without_arguments(self, node: ReadObject, name: str, name_key: str) -> Draft | None:
        if set(node) - BESIDE_KEYS - {name_key} or self._tools.required(self._tools.plain_name(name)):
            return None
        return Draft(name, {}, node.start, node.end, repairs=self._reader.repairs(node.start, node.end))

    def _single_key(self, node: ReadObject) -> Draft | None:
        if len(node) != 1:
            return None
        name, arguments = next(iter(node.items()))
        if not isinstance(arguments, ReadObject) or self._is_schema(name, arguments):
            return None
        if not (self._explicit or self._tools.knows(self._tools.plain_name(name))):
            return None
        return draft_of(name, arguments, self._reader, self._source, (node.start, node.end))

    def _is_schema(self, name: str, arguments: Mapping[str, object]) -> bool:
        """Say whether these are not arguments but the description of them, as it stands in the prompt."""
        looks = isinstance(arguments.get("properties"), Mapping) and isinstance(arguments.get("type"), str)
        return looks and "properties" not in self._tools.properties(self._tools.plain_name(name))


_QUOTES: Final = frozenset("'\"`")
_CLOSERS: Final = ("</", "<|/", "<tool_call")
_BETWEEN: Final = frozenset(",;")

_Found = Generator[Draft | None, None, Outcome]


class Run:
    """Reads calls as long as there is one after the other.

    Attributes:
        end: behind the last call and the brackets that belong to it.
    """

    def __init__(self, source: Source, start: int, tools: OfferedTools, *, explicit: bool) -> None:
        """Begin to read.

        Args:
            source: the text.
            start: where the first call or a bracket before it stands.
            tools: the tools that the model was offered.
            explicit: whether the notation said already that calls follow, so that their names need not be offered.
        """
        self.end: int = start
        self._source = source
        self._tools = tools
        self._explicit = explicit
        self._at = start
        self._depth = 0
        self._found = False
        self._reached = start
        self._quote = ""

    def read(self) -> _Found:
        """Give the calls; the outcome ends behind the last one, or where a value that is none ends."""
        while True:
            self._at = yield from after_space(self._source, self._at)
            letter = self._source.text[self._at : self._at + 1]
            if self._is_between(letter):
                self._at += 1
                if letter in "]}" and self._found:
                    self.end = self._at
                    if not self._depth:
                        return self._outcome("")
                continue
            if letter == "{":
                refusal = yield from self._object()
            elif letter and (letter.isalpha() or letter == "_"):
                refusal = yield from self._call()
            else:
                return self._outcome("")
            if refusal is not None:
                return self._outcome(refusal)

    def _is_between(self, letter: str) -> bool:
        """Say whether this is a bracket, a comma or a quotation mark that belongs to the run."""
        if letter == "[" and self._depth < 2:  # noqa: PLR2004  # a list, and one in a list
            self._depth += 1
        elif letter == "]" and self._depth:
            self._depth -= 1
        elif letter == "}" and self._found and self._explicit:  # one too many, before the closing tag
            return True
        elif letter and letter in _QUOTES and self._depth and not self._quote:
            self._quote = letter
        elif not (letter and letter in _BETWEEN and self._found and not self._quote):
            return False
        return True

    def _object(self) -> Generator[Draft | None, None, str | None]:
        reader = yield from read_value(self._source, self._at)
        self._reached = max(self._reached, reader.reached)
        if reader.failure and self._explicit and (yield from literal_at(self._source, reader.at, _CLOSERS)):
            reader.close_here()
        drafts = CallsInJson(reader, self._source, self._tools, explicit=self._explicit).drafts()
        if reader.value is not None and not self._found:
            self.end = reader.at  # data: nothing in it is a call
        if not drafts:
            return reader.failure if self._explicit or self._found else ""
        yield from drafts
        yield from self._pass(reader.at)
        return None

    def _call(self) -> Generator[Draft | None, None, str | None]:
        name = yield from name_at(self._source, self._at)
        self._reached = max(self._reached, self._at + len(name))
        if not name or not self._source.text.startswith("(", self._at + len(name)):
            return ""
        plain = self._tools.plain_name(name)
        if not (self._explicit or self._tools.knows(plain) or (self._depth and not self._tools.names)):
            return f"{plain[:80]} is not offered" if self._depth else ""
        call = yield from python_call(self._source, self._at, name)
        if isinstance(call, LiteralReader):
            self._reached = max(self._reached, call.reached)
            return call.failure or "it is no list of arguments"
        yield call
        yield from self._pass(call.end)
        return None

    def _pass(self, end: int) -> Steps[None]:
        self._found = True
        closer = (yield from literal_at(self._source, end, (self._quote,))) if self._quote else ""
        self._at = self.end = end + len(closer)
        self._quote = ""

    def _outcome(self, refusal: str) -> Outcome:
        return Outcome(self.end, refusal, self._reached)
