r"""Regular expressions in time proportional to the text: a pattern becomes an automaton, and nothing is tried twice.

The `re` module backtracks: a short pattern such as `^(a+)+$` can take years for a short text. Patterns here have the syntax and
the meaning that they have there, and `\p{L}` for characters of a general category of Unicode, as in JavaScript, without what an
automaton cannot match: references to groups, lookbehind, conditional, atomic and possessive parts. Where the content of a lookahead matches is found from the end of the text to its beginning, in one
pass for each.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from re import IGNORECASE, MULTILINE, UNICODE
from re import _compiler as compiler  # type: ignore[attr-defined]  # `re` parses patterns and matches single characters
from re import _constants as ops  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, Final, TypeAlias
from unicodedata import category

from attrs import define, field, frozen

from agentloop.errors import ToolDefinitionError
from agentloop.values.reprs import ShownByField

CharacterTest: TypeAlias = Callable[[str], bool]
Spend: TypeAlias = Callable[[float], None]
"""Counts steps; raises when there are too many."""

MAX_STATES = 2_000
"""The maximum size of an automaton; `(a{50}){50}` has 2,500 states."""
MAX_CHARACTERS = 8_000
"""The maximum length of a pattern: `re` parses some, such as `aa…a|aa…a`, in time quadratic in their length."""
MAX_PREPARED = 300_000
"""The maximum number of characters in the classes of a pattern that ignore case; `re` looks at each of them once."""

_PREPARED_PER_STEP = 8
_MAX_STORED = 200_000
_MAX_CLOSED = 2_000
_CHARACTERS_PER_STEP = 16
_CHARACTERS_WITH_NEIGHBORS_PER_STEP = 4
_STATES_PER_STEP = 4
# The context of a position, as bits: about the next character, about the one before it, and about the ends of the text.
_NEWLINE, _WORD, _ASCII_WORD = 1, 2, 4
_BEFORE = 3  # the shift to the bits of the character before
_FIRST, _LAST, _BEFORE_LAST_NEWLINE = 64, 128, 256
_LOOKAHEADS = 9  # the shift to a bit for each lookahead: whether its content matches from here on
_IS_NON_BOUNDARY_OF_EMPTY_TEXT = bool(re.search(r"\B", ""))  # since Python 3.14


@define(eq=False, repr=False)
class _State(ShownByField):
    """A state of an automaton.

    Attributes:
        test: whether a character leads to the first target; None for a state that is left without a character.
        targets: the next states.
        holds: whether a position with this context may be passed; None for any.
    """

    test: CharacterTest | None = None
    targets: list[int] = field(factory=list)
    holds: Callable[[int], bool] | None = None


@define(eq=False, repr=False)
class _Positions(ShownByField):
    """A set of states that are active at once, and where characters lead from it.

    Attributes:
        states: the states.
        closures: the states that are reached without a character, by context.
        following: the next sets, by character.
    """

    states: frozenset[int]
    closures: dict[int, _Positions] = field(factory=dict)
    following: dict[str, _Positions] = field(factory=dict)


@frozen(eq=False, repr=False)
class _Lookahead(ShownByField):
    """The automaton of the content of a lookahead.

    Attributes:
        start: its first state.
        accept: its last state.
        states: its states that test a character.
    """

    start: int
    accept: int
    states: frozenset[int]


class LinearPattern:
    """A pattern compiled to an automaton.

    Attributes:
        steps: the steps that it took to compile it, of about 2 µs.

    Raises:
        ToolDefinitionError: when it is not a regular expression, is too long, or has a part that an automaton cannot match.
    """

    __slots__ = (
        "_accept",
        "_cache",
        "_categories",
        "_lookaheads",
        "_needs_neighbors",
        "_prepared",
        "_sources",
        "_start",
        "_states",
        "_stored",
        "_tests",
        "steps",
    )

    def __init__(self, pattern: str) -> None:
        self._states: list[_State] = []
        self._lookaheads: list[_Lookahead] = []
        self._needs_neighbors = False
        self._prepared = 0
        self._tests: dict[tuple[Any, str, int], CharacterTest] = {}
        if len(pattern) > MAX_CHARACTERS:
            raise ToolDefinitionError(f"the pattern {pattern[:100]!r}… has more than {MAX_CHARACTERS:,} characters")
        self._categories: dict[int, CharacterTest] = {}
        try:
            tree = parser.parse(self._without_categories(pattern))
            self._accept = self._add(_State())
            self._start = self._build(tree, self._accept, tree.state.flags)
        except (ops.error, OverflowError, RecursionError) as error:
            raise ToolDefinitionError(f"the pattern {pattern!r:.100} is not a regular expression: {error}") from error
        except _Unsupported as error:
            raise ToolDefinitionError(f"the pattern {pattern!r:.100} {error}") from None
        self.steps: float = len(pattern) + 2 * len(self._states) + self._prepared // _PREPARED_PER_STEP
        self._cache: dict[frozenset[int], _Positions] = {}
        self._stored = 0
        self._sources: list[list[int]] = []

    def search(self, text: str, spend: Spend) -> bool:
        r"""Return whether the pattern matches somewhere in a text.

        Args:
            text: the text.
            spend: counts the steps: one for each 16 characters, or for 4 if the pattern has parts such as `\b`, one for
                each character and lookahead, and more for characters that are new to the automaton.
        """
        ahead = self._look_ahead(text, spend)
        needs_neighbors = self._needs_neighbors
        spend(len(text) // (_CHARACTERS_WITH_NEIGHBORS_PER_STEP if needs_neighbors else _CHARACTERS_PER_STEP))
        current = self._positions(frozenset((self._start,)))
        last = len(text)
        for index in range(last + 1):
            context = 0 if 0 < index < last - 1 and not needs_neighbors else _context(text, index)
            if ahead:
                context |= ahead[index]
            closure = current.closures.get(context)
            if closure is None:
                closure = current.closures[context] = self._close(current.states, context, spend)
            if self._accept in closure.states:
                return True
            if index < last:
                character = text[index]
                following = closure.following.get(character)
                if following is None:
                    following = closure.following[character] = self._step(closure.states, character, spend)
                current = following
        return False

    def places(self, text: str, spend: Spend) -> list[tuple[int, int]]:
        """Return where the pattern matches: the first index and the one after the last of each place, in order.

        A place has every character that is in some match, so that matches which touch or overlap are one place. That is what takes
        two passes over the text, whatever the pattern is; the matches of `re`, one after the other, may take more.

        Args:
            text: the text.
            spend: counts the steps, as for `search`.
        """
        spend(len(text) // _CHARACTERS_WITH_NEIGHBORS_PER_STEP)
        ahead = self._look_ahead(text, spend) or [0] * (len(text) + 1)
        reached: list[frozenset[int]] = []  # before each character, from the beginning
        current = self._positions(frozenset((self._start,)))
        for index in range(len(text)):
            context = _context(text, index) | ahead[index]
            closure = current.closures.get(context)
            if closure is None:
                closure = current.closures[context] = self._close(current.states, context, spend)
            reached.append(closure.states)
            following = closure.following.get(text[index])
            if following is None:
                following = closure.following[text[index]] = self._step(closure.states, text[index], spend)
            current = following
        return self._covered(text, reached, ahead, spend)

    def _covered(
        self, text: str, reached: list[frozenset[int]], ahead: Sequence[int], spend: Spend
    ) -> list[tuple[int, int]]:
        """Return the places of the characters from which a match that reached them goes on to its end."""
        places: list[tuple[int, int]] = []
        closed: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        stepped: dict[tuple[frozenset[int], frozenset[int], str], frozenset[int]] = {}
        ending: frozenset[int] = frozenset()  # the states after a character that lead to the end of a match
        for index in range(len(text) - 1, -1, -1):
            context = _context(text, index + 1) | ahead[index + 1]
            if (ending, context) not in closed:
                closed[ending, context] = self._close_backward({*ending, self._accept}, context, spend)
            after, before, character = closed[ending, context], reached[index], text[index]
            if (after, before, character) not in stepped:
                stepped[after, before, character] = self._step_backward(after, before, character, spend)
            ending = stepped[after, before, character]
            if ending and places and places[-1][0] == index + 1:
                places[-1] = index, places[-1][1]
            elif ending:
                places.append((index, index + 1))
            if len(closed) + len(stepped) > _MAX_CLOSED:
                closed.clear()
                stepped.clear()
        return places[::-1]

    def _look_ahead(self, text: str, spend: Spend) -> list[int]:
        """Return, for each position, the bits of the lookaheads whose content matches from there on; empty without lookaheads."""
        if not self._lookaheads:
            return []
        found = [0] * (len(text) + 1)
        # The content of a lookahead may contain those before it in the list, and no others.
        for number, lookahead in enumerate(self._lookaheads):
            spend(len(text))
            closed: dict[tuple[frozenset[int], int], frozenset[int]] = {}
            stepped: dict[tuple[frozenset[int], str], frozenset[int]] = {}
            ending: frozenset[int] = frozenset()
            for index in range(len(text), -1, -1):
                context = _context(text, index) | found[index]
                if (ending, context) not in closed:
                    closed[ending, context] = self._close_backward({*ending, lookahead.accept}, context, spend)
                after = closed[ending, context]
                found[index] |= (lookahead.start in after) << _LOOKAHEADS + number
                if not index:
                    break
                character = text[index - 1]
                if (after, character) not in stepped:
                    stepped[after, character] = self._step_backward(after, lookahead.states, character, spend)
                ending = stepped[after, character]
                if len(closed) + len(stepped) > _MAX_CLOSED:
                    closed.clear()
                    stepped.clear()
        return found

    def _step_backward(
        self, after: Collection[int], before: Collection[int], character: str, spend: Spend
    ) -> frozenset[int]:
        """Return those of the states `before` from which a character leads to one of the states `after`."""
        spend(1 + len(before) // _STATES_PER_STEP)
        return frozenset(
            number
            for number in before
            if (test := self._states[number].test) is not None
            and self._states[number].targets[0] in after
            and test(character)
        )

    def _close_backward(self, states: set[int], context: int, spend: Spend) -> frozenset[int]:
        """Return the states from which these are reached without a character."""
        if not self._sources:  # the states that lead to each state without a character; most patterns need them never
            sources: list[list[int]] = [[] for _ in self._states]
            for number, state in enumerate(self._states):
                for target in state.targets if state.test is None else ():
                    sources[target].append(number)
            self._sources = sources  # complete, since other threads may match the same pattern
        reached, pending = states, [*states]
        while pending:
            for source in self._sources[pending.pop()]:
                holds = self._states[source].holds
                if source not in reached and (holds is None or holds(context)):
                    reached.add(source)
                    pending.append(source)
        spend(1 + len(reached) // _STATES_PER_STEP)
        return frozenset(reached)

    def _positions(self, states: frozenset[int]) -> _Positions:
        known = self._cache.get(states)
        if known is None:
            known = self._cache[states] = _Positions(states)
        return known

    def _step(self, states: frozenset[int], character: str, spend: Spend) -> _Positions:
        self._store(states, spend)
        targets = {self._start}  # a match may begin at each position
        for number in states:
            state = self._states[number]
            if state.test is not None and state.test(character):
                targets.add(state.targets[0])
        return self._positions(frozenset(targets))

    def _close(self, states: frozenset[int], context: int, spend: Spend) -> _Positions:
        reached, pending = set(states), list(states)
        while pending:
            state = self._states[pending.pop()]
            if state.test is None and (state.holds is None or state.holds(context)):
                new = [target for target in state.targets if target not in reached]
                reached.update(new)
                pending.extend(new)
        self._store(reached, spend)
        return _Positions(frozenset(reached))

    def _store(self, states: Collection[int], spend: Spend) -> None:
        """Count the work of a part of the automaton that is computed and stored; forget all of them when they are many."""
        spend(1 + len(states) // _STATES_PER_STEP)
        self._stored += 1 + len(states)
        if self._stored > _MAX_STORED:
            self._stored = 0
            self._cache.clear()

    def _without_categories(self, pattern: str) -> str:
        r"""Return a pattern with a character that it does not have in place of each `\p{…}`, which `re` does not know."""
        unused = (code for code in range(_PLACEHOLDERS, _PLACEHOLDERS + MAX_CHARACTERS) if chr(code) not in pattern)
        codes: dict[str, int] = {}

        def replace(escape: re.Match[str]) -> str:
            name = escape[2]
            if name is None:
                return escape[0]
            if escape[0] not in codes:
                code = codes[escape[0]] = next(unused)
                self._categories[code] = _category_test(name, is_negated=escape[1] == "P")
            return chr(codes[escape[0]])

        return _ESCAPES.sub(replace, pattern)

    # --- construction -------------------------------------------------------------------------------------------

    def _add(self, state: _State) -> int:
        if len(self._states) >= MAX_STATES:
            raise _Unsupported(f"needs more than {MAX_STATES:,} states")
        self._states.append(state)
        return len(self._states) - 1

    def _build(self, tree: Iterable[tuple[Any, Any]], after: int, flags: int) -> int:
        """Add the states of a parsed pattern that leads to the state `after`; return its first state."""
        for operation, argument in reversed(list(tree)):
            after = self._build_part(operation, argument, after, flags)
        return after

    def _build_part(self, operation: Any, argument: Any, after: int, flags: int) -> int:
        if operation in {ops.MAX_REPEAT, ops.MIN_REPEAT}:  # greedy or not, the same texts match
            least, most, inner = argument
            return self._build_repeat((least, most), inner, after, flags)
        if operation is ops.SUBPATTERN:
            _, added, removed, inner = argument
            return self._build(inner, after, compiler._combine_flags(flags, added, removed))  # noqa: SLF001
        if operation is ops.BRANCH:
            return self._add(_State(targets=[self._build(branch, after, flags) for branch in argument[1]]))
        if operation is ops.AT:
            self._needs_neighbors |= argument in _ABOUT_NEIGHBORS or bool(flags & MULTILINE)
            return self._add(_State(targets=[after], holds=_assertion(argument, flags)))
        if operation in {ops.ASSERT, ops.ASSERT_NOT} and argument[0] > 0:
            return self._build_lookahead(argument[1], after, flags, is_positive=operation is ops.ASSERT)
        key = operation, str(argument), flags
        if key not in self._tests:
            self._prepared += _cost_without_case(operation, argument, flags)
            if self._prepared > MAX_PREPARED:
                raise _Unsupported(f"ignores the case of more than {MAX_PREPARED:,} characters")
            self._tests[key] = _character_test(operation, argument, flags, self._categories)
        return self._add(_State(self._tests[key], [after]))

    def _build_lookahead(self, inner: Any, after: int, flags: int, *, is_positive: bool) -> int:
        accept = self._add(_State())
        start = self._build(inner, accept, flags)
        tests = [number for number in range(accept, len(self._states)) if self._states[number].test is not None]
        bit = 1 << _LOOKAHEADS + len(self._lookaheads)
        self._lookaheads.append(_Lookahead(start, accept, frozenset(tests)))
        return self._add(_State(targets=[after], holds=lambda context: bool(context & bit) is is_positive))

    def _build_repeat(self, counts: tuple[int, Any], inner: Any, after: int, flags: int) -> int:
        least, most = counts
        if most is ops.MAXREPEAT:
            loop = self._add(_State())
            self._states[loop].targets = [self._build(inner, loop, flags), after]
            first = loop
        else:
            first = after
            for _ in range(most - least):
                first = self._add(_State(targets=[self._build(inner, first, flags), after]))
        for _ in range(least):
            size = len(self._states)
            first = self._build(inner, first, flags)
            if len(self._states) == size:
                break  # the repeated part is empty
        return first


@lru_cache(maxsize=512)
def compile_pattern(pattern: str) -> LinearPattern:
    """Return a compiled pattern; the latest 512 are kept.

    Raises:
        ToolDefinitionError: as for `LinearPattern`.
    """
    return LinearPattern(pattern)


class _Unsupported(Exception):  # internal; becomes a ToolDefinitionError
    """A part of a pattern that an automaton cannot match, as the rest of a sentence about the pattern."""


_ABOUT_NEIGHBORS = frozenset({ops.AT_BOUNDARY, ops.AT_NON_BOUNDARY})


def _assertion(kind: Any, flags: int) -> Callable[[int], bool]:
    if kind in _ABOUT_NEIGHBORS:
        word = _WORD if flags & UNICODE else _ASCII_WORD
        is_boundary = kind is ops.AT_BOUNDARY
        if not is_boundary and not _IS_NON_BOUNDARY_OF_EMPTY_TEXT:
            return lambda context: (
                bool(context & word) is bool(context >> _BEFORE & word) and context & (_FIRST | _LAST) != _FIRST | _LAST
            )
        return lambda context: (bool(context & word) is not bool(context >> _BEFORE & word)) is is_boundary
    is_multiline = flags & MULTILINE
    masks = {
        ops.AT_BEGINNING: _FIRST | _NEWLINE << _BEFORE if is_multiline else _FIRST,
        ops.AT_BEGINNING_STRING: _FIRST,
        ops.AT_END: _LAST | (_NEWLINE if is_multiline else _BEFORE_LAST_NEWLINE),
        ops.AT_END_STRING: _LAST,
    }
    if kind not in masks:
        raise _Unsupported(f"has a part that is not supported: {kind}")
    mask = masks[kind]
    return lambda context: bool(context & mask)


def _context(text: str, index: int) -> int:
    """Return the context of a position."""
    last = len(text)
    context = _character_context(text[index - 1]) << _BEFORE if index else _FIRST
    if index == last:
        return context | _LAST
    after = _character_context(text[index])
    return context | after | (_BEFORE_LAST_NEWLINE if index == last - 1 and after & _NEWLINE else 0)


@lru_cache(maxsize=4096)
def _character_context(character: str) -> int:
    is_word = character.isalnum() or character == "_"
    return (character == "\n") * _NEWLINE | is_word * _WORD | (is_word and character.isascii()) * _ASCII_WORD


_PLACEHOLDERS: Final = 0x100000
"""The first character for private use that may stand for a category."""
_ESCAPES: Final = re.compile(r"\\(?:([pP])\{([^{}]*)\}|.)", re.DOTALL)
"""Every escape is matched, so that a backslash that is itself escaped does not start one."""
_LONG_CATEGORIES: Final = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Surrogate": "Cs",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_CATEGORIES: Final = frozenset(_LONG_CATEGORIES.values())


def _category_test(name: str, *, is_negated: bool) -> CharacterTest:
    """Return the test of a general category of Unicode, by one of its names in regular expressions of JavaScript."""
    bare = name.removeprefix("General_Category=").removeprefix("gc=")
    short = _LONG_CATEGORIES.get(bare, bare)
    if name == "Any":
        return lambda _: not is_negated
    if name == "ASCII":
        return lambda character: character.isascii() is not is_negated
    if short not in _CATEGORIES:
        raise _Unsupported(f"has the property {name!r:.100} of characters, and only general categories are supported")
    starts = ("Lu", "Ll", "Lt") if short == "LC" else short
    return lambda character: category(character).startswith(starts) is not is_negated


def _character_test(
    operation: Any, argument: Any, flags: int, categories: Mapping[int, CharacterTest]
) -> CharacterTest:
    """Return the test of a part that matches one character.

    Args:
        operation: the operation of `re`.
        argument: its argument.
        flags: the flags of the part.
        categories: the tests that characters of the pattern stand for.
    """
    own = _own_categories(operation, argument, categories) if categories else None
    if own is not None and flags & IGNORECASE:
        raise _Unsupported("ignores the case of a category of characters")
    if own is not None and operation is not ops.IN:
        test = categories[argument]
        return test if operation is ops.LITERAL else lambda character: not test(character)
    if operation is ops.LITERAL and not flags & IGNORECASE:
        return chr(argument).__eq__
    if operation is ops.FAILURE:  # what `(?!)` is parsed to
        return lambda _: False
    if operation not in {ops.ANY, ops.LITERAL, ops.NOT_LITERAL, ops.IN}:
        raise _Unsupported(f"has a part that takes more than time proportional to the text: {operation}")
    if operation is not ops.IN:
        return _test_of_re(operation, argument, flags)
    is_negated = argument[0][0] is ops.NEGATE
    listed = [item for item in argument if item[0] in {ops.LITERAL, ops.RANGE}]
    ranges = _merge([_as_range(item) for item in listed if item[0] is ops.RANGE or item[1] not in categories])
    classes = [item for item in argument if item[0] is ops.CATEGORY]
    if flags & IGNORECASE:
        items = [(ops.NEGATE, None)] * is_negated + [(ops.RANGE, each) for each in ranges] + classes
        return _test_of_re(ops.IN, items, flags)
    tests = [*[_test_of_re(ops.IN, [each], flags) for each in classes], *(own or ())]
    return _class_test(ranges, tests, is_negated=is_negated)


def _own_categories(
    operation: Any, argument: Any, categories: Mapping[int, CharacterTest]
) -> list[CharacterTest] | None:
    """Return the tests that the characters of a part stand for; None if they are characters."""
    if operation in {ops.LITERAL, ops.NOT_LITERAL}:
        return [categories[argument]] if argument in categories else None
    if operation is not ops.IN:
        return None
    if any(item[0] is ops.RANGE and not categories.keys().isdisjoint(item[1]) for item in argument):
        raise _Unsupported("has a range that begins or ends with a category of characters")
    return [categories[item[1]] for item in argument if item[0] is ops.LITERAL and item[1] in categories] or None


def _test_of_re(operation: Any, argument: Any, flags: int) -> CharacterTest:
    # `re` matches this part alone, so that classes and the letters that are equal without case are those of `re`.
    state = parser.State()
    state.flags = flags
    matcher: re.Pattern[str] = compiler.compile(parser.SubPattern(state, [(operation, argument)]))
    return lambda character: matcher.match(character) is not None


def _class_test(
    ranges: Sequence[tuple[int, int]], categories: Sequence[CharacterTest], *, is_negated: bool
) -> CharacterTest:
    """Return the test of a class of characters; `re` takes a thousand times longer to prepare that of a wide range."""
    starts, ends = [first for first, _ in ranges], [last for _, last in ranges]

    def test(character: str) -> bool:
        code = ord(character)
        index = bisect_right(starts, code) - 1
        is_in = (index >= 0 and code <= ends[index]) or any(matches(character) for matches in categories)
        return is_in is not is_negated

    return test


def _as_range(item: tuple[Any, Any]) -> tuple[int, int]:
    return item[1] if item[0] is ops.RANGE else (item[1], item[1])


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(merged[-1][1], last)
        else:
            merged.append((first, last))
    return merged


def _cost_without_case(operation: Any, argument: Any, flags: int) -> int:
    """Return the number of characters at which `re` looks to prepare a class that ignores case."""
    if operation is not ops.IN or not flags & IGNORECASE:
        return 0
    ranges = _merge([_as_range(item) for item in argument if item[0] in {ops.LITERAL, ops.RANGE}])
    return sum(min(last, _LAST_PREPARED) - min(first, _LAST_PREPARED) for first, last in ranges)


_LAST_PREPARED = 0xFFFF
