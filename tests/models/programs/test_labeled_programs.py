"""The subset of Python of planned programs: it computes as Python does, and its values keep the marks of their sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.models.programs.labeled_program import CallFailed, PlanEnd, PlanFailed, run_plan
from agentloop.models.programs.labeled_values import Marks, Node, Part, PlannedCall, ResultMarks
from agentloop.models.programs.program import ProgramLimits

FUNCTIONS = {"read": ["name"], "send": ["to", "body"], "ask": ["data", "question"]}
WORDS: Marks = frozenset({(0, Part.WORDS)})
ANSWER: Marks = frozenset({(1, Part.ANSWER)})
MAILS = [
    {"id": "7", "size": 3, "text": "Pay Eve."},
    {"id": "8", "size": 9, "text": "Hi."},
]
READ = ResultMarks(WORDS, own=frozenset({"id"})).node_of(MAILS)
NAMES = ResultMarks(WORDS, identifiers=frozenset({"*"})).node_of(["general", "external"])
ASKED = ResultMarks(ANSWER).node_of("8")


def run(source: str, results: Sequence[Node | CallFailed] = (), **limits: Any) -> PlanEnd | Sequence[PlannedCall]:
    """Run a program."""
    return run_plan(source, FUNCTIONS, ProgramLimits(**limits), results)


def value_of(source: str, results: Sequence[Node | CallFailed] = ()) -> Any:
    ended = run(source, results)
    assert isinstance(ended, PlanEnd), ended
    return ended.value


def call_of(source: str, results: Sequence[Node | CallFailed] = ()) -> PlannedCall:
    """Return the one call for which a program waits after the given results."""
    calls = run(source, results)
    assert not isinstance(calls, PlanEnd)
    (call,) = calls
    return call


@pytest.mark.parametrize(
    "expression",
    [
        "[n * 2 for n in range(5) if n % 2 == 0]",
        "max(['ab', 'c'], key=lambda t: len(t))",
        "min(['ab', 'c', 'd'], key=lambda t: len(t))",
        "sorted([3, 1, 2], reverse=True)",
        "sorted(['b1', 'a1', 'b0'], key=lambda t: t[0])",
        "sorted([['a', 1], ['b', 1]], key=lambda t: t[1], reverse=True)",
        "max([['a', 1], ['b', 1]], key=lambda t: t[1])",
        "f'{1.5:.2f} {\"x\"} {7:03d}'",
        "', '.join(t.strip() for t in ' a , b '.split(','))",
        "{'a': [1, 2][1]}['a'] if False else {'a': 2}.get('b', 3)",
        "1 < 2 <= 2 and not (3 in [1, 2]) or None",
        "0 or '' or 'x'",
        "'abc'[1:] + 'abc'[-1] + [1, 2, 3][::-1][0] * 'z'",
        "-7 // 2 + 7 % 3 - 2 * 3 / 4",
        "round(sum([1, 2.5]) / 2, 1)",
        "len(set([1, 1, 2]))",
        "{k: v + 1 for k, v in {'a': 1}.items()}",
        "list(zip([1, 2], 'ab'))[1][1] + str(list(enumerate('xy'))[1][0])",
        "any([0, 1]) and all([]) and abs(-3) == 3 and bool('x')",
        "'Hi'.replace('H', 'hh').upper().startswith('HH')",
        "int('12') + float('0.5')",
        "list(reversed([1, 2])) + list(range(1, 4, 2))",
        "[x for xs in [[1], [2, 3]] for x in xs if x > 1]",
    ],
)
def test_expressions_have_the_values_of_python(expression: str) -> None:
    """The functions, methods and operators of the subset are those of Python."""
    assert json.dumps(value_of(expression)) == json.dumps(eval(expression))


STATEMENTS = """
total = 0
seen = []
for number, name in enumerate(['a', 'b', 'c', 'd']):
    if name == 'b':
        continue
    if name == 'd':
        break
    seen.append([number, name])
    total += number
left, right = seen
table = {}
table['x'] = left
while total < 10:
    total = total + 3
print(total, 'done')
[total, seen, right, table]
"""


def test_statements_do_what_python_does() -> None:
    """Loops, branches, unpacking and changes of lists and dictionaries."""
    ended = run(STATEMENTS)
    assert isinstance(ended, PlanEnd)
    assert ended.printed == "11 done\n"
    assert ended.value == [11, [[0, "a"], [2, "c"]], [2, "c"], {"x": [0, "a"]}]
    assert ended.marks == frozenset()


@given(st.recursive(st.integers(-9, 9) | st.text("ab", max_size=2), lambda s: st.lists(s, max_size=3), max_leaves=6))
def test_literals_are_what_they_say(value: object) -> None:
    """A literal is its value, without marks."""
    ended = run(repr(value))
    assert isinstance(ended, PlanEnd)
    assert (ended.value, ended.marks) == (value, frozenset())


def test_a_program_waits_for_its_calls_and_goes_on_with_their_results() -> None:
    """Calls that are awaited at once are made at once; each run gives the same calls."""
    source = "import asyncio\na, b = await asyncio.gather(read('x'), read(name='y'))\nc = await read(name=a)\n[a, b, c]"
    both = run(source)
    assert not isinstance(both, PlanEnd)
    assert [(call.name, call.arguments) for call in both] == [("read", {"name": "x"}), ("read", {"name": "y"})]
    results = [ResultMarks(WORDS).node_of(text) for text in ("1", "2", "3")]
    assert call_of(source, results[:2]).arguments == {"name": "1"}
    assert value_of(source, results) == ["1", "2", "3"]
    many = "import asyncio\nfound = await asyncio.gather(*[read(name=n) for n in ['x', 'y'] if n != 'x'])\nfound"
    assert call_of(many).arguments == {"name": "y"}


def test_a_call_that_is_not_awaited_is_not_made() -> None:
    """The writer of the program reads that."""
    ended = run("read('x')\n1")
    assert isinstance(ended, PlanEnd)
    assert ended.notes == ["a call of read was not awaited and not made: write `await read(…)`"]


# --- marks ------------------------------------------------------------------------------------------------------------

FETCH = "mails = await read('inbox')\n"


@pytest.mark.parametrize(
    ("argument", "part"),
    [
        ("'Bob'", None),
        ("mails[0]['id']", None),
        ("mails[0]['text']", Part.WORDS),
        ("mails[0]['id'] + mails[0]['text']", Part.WORDS),
        ("f\"to {mails[1]['text']}\"", Part.WORDS),
        ("mails[0]['text'].upper()[1:]", Part.WORDS),
        ("str(mails[0]['size'] + 1)", Part.WORDS),
        ("str(mails)", Part.WORDS),
        ("mails", Part.WORDS),
        ("max(mails, key=lambda m: m['size'])['id']", Part.PICKED),
        ("[m['id'] for m in mails if 'Pay' in m['text']][0]", Part.PICKED),
        ("'a' if mails[0]['size'] > 1 else 'b'", Part.PICKED),
        ("['a', 'b', 'c', 'd'][mails[0]['size']]", Part.PICKED),
        ("sorted(mails, key=lambda m: m['text'])[0]['id']", Part.PICKED),
        ("{'x': 'y'}.get(mails[0]['text'], 'z')", Part.PICKED),
        ("str(len([m for m in mails if m['size'] > 1]))", Part.WORDS),
        ("str(len([m for m in mails if m['id'] == '7']))", None),
        ("re.findall('[A-Z]', mails[0]['text'])[0]", Part.WORDS),
        ("re.search('E(.*)', mails[0]['text']).group(1)", Part.WORDS),
        ("json.dumps(mails[0]['text'])", Part.WORDS),
    ],
)
def test_an_argument_has_the_marks_of_what_it_is_made_of(argument: str, part: Part | None) -> None:
    """Fields that a service vouches for have none; what is computed has all; what is picked says so."""
    call = call_of(f"{FETCH}await send(to={argument}, body='x')", [READ])
    assert {mark_part for _, mark_part in call.marks["to"]} - {Part.PICKED} == ({part} - {Part.PICKED, None})
    assert (Part.PICKED in {mark_part for _, mark_part in call.marks["to"]}) == (part is Part.PICKED)
    assert (call.marks["body"], call.control) == (frozenset(), frozenset())


def test_a_name_is_words_in_a_text() -> None:
    """A name of a service can be passed on; a text that is made of it is foreign."""
    whole = call_of("names = await read('channels')\nawait send(to=names[0], body=f'in {names[0]}')", [NAMES])
    assert whole.marks == {"to": frozenset({(0, Part.NAME)}), "body": WORDS}


@pytest.mark.parametrize(
    ("source", "is_decided"),
    [
        ("if mails[0]['size'] > 1:\n    await send('Bob', 'x')", True),
        ("if mails[0]['id'] == '7':\n    await send('Bob', 'x')", False),
        ("if len(mails) > 1:\n    await send('Bob', 'x')", False),
        ("if mails[0]['size'] > 1:\n    pass\nawait send('Bob', 'x')", False),
        ("if mails[0]['size'] > 1:\n    if True:\n        await send('Bob', 'x')", True),
        (
            "for m in mails:\n    if m['size'] > 1:\n        continue\n    await send('Bob', 'x')\nawait send('Eve', 'x')",
            False,
        ),
        ("for m in mails:\n    if m['size'] > 5:\n        break\n    await send('Bob', 'x')", False),
        ("for m in mails[::-1]:\n    if m['size'] > 99:\n        break\n    await send('Bob', 'x')", True),
        ("while mails[0]['size'] > 1:\n    await send('Bob', 'x')", True),
        ("mails[0]['size'] > 1 and await send('Bob', 'x')", True),
        ("(await send('Bob', 'x')) if mails[0]['size'] > 1 else 0", True),
        ("await send('Bob', 'x') if mails[0]['id'] else 0", False),
        ("for m in [m for m in mails if m['size'] > 1]:\n    await send('Bob', 'x')", False),
    ],
)
def test_a_branch_on_foreign_words_decides_what_happens_in_it(source: str, *, is_decided: bool) -> None:
    """What happens after it is the program's own decision again. A filter is a pick, whose rule the program has written."""
    call = call_of(FETCH + source, [READ])
    if "break" in source and "99" not in source:
        assert call.control  # the first round may have left the loop
        return
    assert bool(call.control) == is_decided


@pytest.mark.parametrize(
    "source",
    [
        "to = 'Bob'\nif mails[0]['size'] > 1:\n    to = 'Eve'\nawait send(to=to, body='x')",
        "to = 'Bob'\nif mails[0]['size'] > 99:\n    to = 'Eve'\nawait send(to=to, body='x')",
        "to = ''\nfor c in mails[0]['text']:\n    to += c\nawait send(to=to, body='x')",
        "n = 0\nwhile n < mails[0]['size']:\n    n += 1\nawait send(to=str(n), body='x')",
        "n = 0\nwhile n < mails[0]['size'] - 3:\n    n += 1\nawait send(to=str(n), body='x')",
        "to = []\nif mails[0]['size'] > 1:\n    to.append('Eve')\nawait send(to=str(len(to)), body='x')",
        "to = []\nif mails[0]['size'] > 99:\n    to.append('Eve')\nawait send(to=str(len(to)), body='x')",
        "to = {}\nif mails[0]['size'] > 1:\n    to['Eve'] = 1\nawait send(to=list(to.keys())[0], body='x')",
        "to = {}\nto[mails[0]['text']] = 1\nawait send(to=to, body='x')",
        "n = 0\nfor i in range(9):\n    if i > mails[0]['size']:\n        break\n    n = n + 1\nawait send(to=str(n), body='x')",
    ],
)
def test_what_a_branch_changes_has_the_marks_of_its_test(source: str) -> None:
    """Also where it did not run: that it did not depends on the same words."""
    call = call_of(FETCH + source, [READ])
    assert (0, Part.WORDS) in call.marks["to"]


@pytest.mark.parametrize(
    "source",
    [
        "await send(to=[m['id'] for m in mails if m['id'] == answer][0], body='x')",
        "await send(to={'8': 'Bob'}[answer], body='x')",
        "await send(to='Bob' if answer else 'Eve', body='x')",
        "await send(to=max(['Bob', 'Eve'], key=lambda name: answer), body='x')",
        "await send(to=[m['id'] for m in mails if m['id'] == answer], body='x')",
    ],
)
def test_what_a_model_picks_is_foreign(source: str) -> None:
    """A pick by the answer of a model that has read something foreign is the model's pick, not the program's."""
    call = call_of(FETCH + "answer = await ask(mails, 'which?')\n" + source, [READ, ASKED])
    assert (1, Part.ANSWER) in call.marks["to"]


@pytest.mark.parametrize(
    "source",
    [
        "for m in [m for m in mails if m['id'] == answer]:\n    await send('Bob', 'x')",
        "[await send('Bob', 'x') for m in mails if m['id'] == answer]",
    ],
)
def test_a_filter_of_a_model_decides(source: str) -> None:
    """What happens once for each item that a model has picked was decided by the model."""
    call = call_of(FETCH + "answer = await ask(mails, 'which?')\n" + source, [READ, ASKED])
    assert (1, Part.ANSWER) in call.control


def test_what_the_program_shows_has_the_marks_of_all_that_is_in_it() -> None:
    """Printed texts, the value, and the branch in which something is printed."""
    ended = run(FETCH + "mails[0]['id']", [READ])
    assert isinstance(ended, PlanEnd)
    assert ended.marks == frozenset()
    for shown in ("print(mails[0]['text'])", "mails[0]", "if mails[0]['size'] > 1:\n    print('x')", "len(str(mails))"):
        ended = run(FETCH + shown, [READ])
        assert isinstance(ended, PlanEnd)
        assert ended.marks == WORDS, shown


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x =", "SyntaxError"),
        ("def f():\n    pass", "line 1: SyntaxError: FunctionDef is not available"),
        ("import os", "line 1: SyntaxError: Import is not available"),
        ("x = 1\ny", "line 2: NameError: 'y' is not defined"),
        ("print(().__class__)", "Attribute is not available"),
        ("open('x')", "NameError"),
        ("[1][2]", "IndexError"),
        ("{'a': 1}['b']", "KeyError: 'b'"),
        ("1 / 0", "ZeroDivisionError"),
        ("break", "SyntaxError: break and continue stand in a loop"),
        ("max([])", "ValueError: max() of nothing"),
        ("x = [0]\nx[0] = x\nx", "RecursionError"),
        ("x = 'a' * 10 ** 9", "SyntaxError: Pow is not available"),
        ("x = 'a' * 999999999", "MemoryError"),
        ("x = [1] * 999999999", "MemoryError"),
        ("x = 7\nwhile True:\n    x = x * x", "integer has at most"),
        ("while True:\n    pass", "MemoryError"),
        ("x = range(10000000000)", "MemoryError"),
        ("'a'.replace('', 'b' * 5000).replace('b', 'c' * 50000)", "MemoryError"),
        ("f'{1:99999999}'", "the format '99999999' is not available"),
        ("round(1, -99999999)", "rounded to at most"),
        ("re.sub('a', 'b' * 9999, 'a' * 99999)", "MemoryError"),
        ("'%s' % 'x'", "write an f-string"),
        ("await read('x') + 'y'", None),
        ("await 1", "can be awaited"),
        ("read('x') + 'y'", "has no value before it is awaited"),
        ("read('x', 'y')", "read takes name, each once"),
        ("await read(name=float('nan'))", "not JSON compliant"),
        ("await read(**{'name': 'x'})", "** is not available"),
        ("a, b = [1]", "2 values expected, and there are 1"),
        ("(lambda x: x)(1)", "is not available"),
        ("x.y = 1", "Attribute is not available"),
    ],
)
def test_what_is_not_python_of_the_subset_fails(source: str, problem: str | None) -> None:
    """The message says the line and what is wrong; nothing else happens."""
    if problem is None:
        assert call_of(source).name == "read"
        return
    with pytest.raises(PlanFailed) as failed:
        run(source, memory_bytes=1_000_000)
    assert problem in str(failed.value)


def test_a_call_that_fails_ends_the_program() -> None:
    """With its message, and what was printed before."""
    with pytest.raises(PlanFailed) as failed:
        run("print('begun')\nawait read('x')\nprint('ended')", [CallFailed("read: no such thing")])
    assert str(failed.value) == "line 2: RuntimeError: read: no such thing\nPrinted before:\nbegun\n"


def test_calls_and_output_are_limited() -> None:
    """By the limits of programs."""
    with pytest.raises(PlanFailed, match="makes more than 2 calls"):
        run("for n in range(3):\n    await read(str(n))", [NAMES, NAMES], calls=2)
    with pytest.raises(PlanFailed, match="at most 10 bytes"):
        run("await read('a' * 100)", argument_bytes=10)
    ended = run("print('a' * 100)", output_characters=10)
    assert isinstance(ended, PlanEnd)
    assert ended.printed == "a" * 10
    assert ended.notes == ["only the first 10 of 101 printed characters are shown"]


@given(st.text(st.sampled_from("abx=[]{}()+-*/%'\"\n :,.<>ifornt0123"), max_size=40))
def test_any_text_is_a_program_or_a_message(source: str) -> None:
    """Whatever a model writes, it runs, waits for calls, or fails with a message."""
    with suppress(PlanFailed):
        run(source, memory_bytes=100_000)
