"""Planned programs: a subset of Python whose values carry the marks of the sources that they come from.

A program runs until it waits for calls, and from its beginning again once they have results: its values depend on nothing else.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, frozen

from agentloop.errors.hints import suggest
from agentloop.models.programs.labeled_functions import (
    BYTES_OF_VALUE,
    FUNCTIONS,
    FoundText,
    Functions,
    as_key,
    distinct,
)
from agentloop.models.programs.labeled_values import (
    CLEAN,
    Array,
    Leaf,
    Marks,
    Node,
    PlannedCall,
    Record,
    all_marks,
    answers,
    mark_in_place,
    marked,
    marks_in,
    node_of,
    picked,
    plain,
    words,
)
from agentloop.models.programs.program import ProgramLimits


class PlanFailed(Exception):  # internal to the worker; becomes a failure of the program
    """A planned program is invalid, or has failed."""


@frozen
class PlanEnd:
    """The end of a program.

    Attributes:
        printed: what it printed.
        value: the value of its last expression, as JSON data.
        notes: what its writer should know.
        marks: the marks of all that.
    """

    printed: str
    value: Any
    notes: Sequence[str]
    marks: Marks


class _Waits(Exception):  # internal: the program waits for calls
    def __init__(self, calls: Sequence[PlannedCall]) -> None:
        super().__init__()
        self.calls = calls


class _LoopLeft(Exception):  # internal: `break` or `continue`
    def __init__(self, *, goes_on: bool) -> None:
        super().__init__()
        self.goes_on = goes_on


@define(eq=False)
class _Coroutine:
    """A call that is not awaited yet."""

    call: PlannedCall
    is_awaited: bool = False


_Value = Node | _Coroutine | FoundText


@frozen
class CallFailed:
    """A call that did not succeed.

    Attributes:
        message: the error.
        marks: the marks of the error, and of what decided that there is one.
    """

    message: str
    marks: Marks = CLEAN


class _CallError(Exception):  # internal: a call did not succeed, which `try` can handle
    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: RuntimeError: {message}")
        self.message = message


def run_plan(
    source: str, functions: Mapping[str, Sequence[str]], limits: ProgramLimits, results: Sequence[Node | CallFailed]
) -> PlanEnd | Sequence[PlannedCall]:
    """Run a program to its end, or to the calls for which it waits.

    Args:
        source: the program.
        functions: the names of the parameters of each function that it can call.
        limits: what it may use.
        results: the results of its first calls.

    Raises:
        PlanFailed: it is invalid, or has failed.
    """
    run = _Run(functions, limits, results)
    try:
        return _guarded(run, source)
    except _Waits as waiting:
        return waiting.calls
    except (PlanFailed, _CallError) as failed:
        raise PlanFailed(run.with_printed(str(failed))) from failed


def _guarded(run: _Run, source: str) -> PlanEnd:
    try:
        return run.to_end(ast.parse(source))
    except SyntaxError as error:
        raise PlanFailed(f"SyntaxError: {error}") from error
    except _LoopLeft as error:
        raise PlanFailed("SyntaxError: break and continue stand in a loop") from error
    except RecursionError as error:
        raise PlanFailed("RecursionError: the program, or a value of it, is nested too deeply") from error
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError, re.error) as error:
        raise PlanFailed(f"line {run.line}: {type(error).__name__}: {error}") from error


_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda a, b: bool(a == b),
    ast.NotEq: lambda a, b: bool(a != b),
    ast.Lt: lambda a, b: bool(a < b),
    ast.LtE: lambda a, b: bool(a <= b),
    ast.Gt: lambda a, b: bool(a > b),
    ast.GtE: lambda a, b: bool(a >= b),
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_MODULES = frozenset({"asyncio", "json", "re"})
_FORMAT = re.compile(r"[<>^]?[+ ]?0?\d{0,2},?(\.\d{1,2})?[dfs%]?")
_MAX_BITS = 10_000
_MAX_SHOWN_OUTPUT = 4_000


class _Run:
    """One run of a program from its beginning."""

    def __init__(
        self, functions: Mapping[str, Sequence[str]], limits: ProgramLimits, results: Sequence[Node | CallFailed]
    ) -> None:
        self.line = 0
        self._functions = functions
        self._apply = Functions(self._charge)
        self._limits = limits
        self._results = results
        self._used = 0
        self._names: dict[str, _Value] = {}
        self._coroutines: list[_Coroutine] = []
        self._branches: Marks = CLEAN
        self._tried: Marks = CLEAN
        self._is_trying = False
        self._printed: list[str] = []
        self._shown: Marks = CLEAN
        self._bytes = 0
        self._call_count = 0

    @property
    def _control(self) -> Marks:
        """What decides that this line runs: the branches that it stands in, and the calls in a `try` that have not failed, or have."""
        return self._branches | self._tried

    @_control.setter
    def _control(self, marks: Marks) -> None:
        self._branches = marks

    def to_end(self, module: ast.Module) -> PlanEnd:
        """Run all statements."""
        last = module.body[-1] if module.body else None
        value: Node = Leaf(None)
        if isinstance(last, ast.Expr):
            self._block(module.body[:-1])
            self.line = last.lineno
            value = self._node(last.value)
        else:
            self._block(module.body)
        printed, limit = "".join(self._printed), self._limits.output_characters
        notes = [
            f"a call of {name} was not awaited and not made: write `await {name}(…)`"
            for name in dict.fromkeys(each.call.name for each in self._coroutines if not each.is_awaited)
        ]
        if len(printed) > limit:
            notes.append(f"only the first {limit:,} of {len(printed):,} printed characters are shown")
        return PlanEnd(printed[:limit], plain(value), notes, self._shown | all_marks(value) | self._control)

    def with_printed(self, message: str) -> str:
        """Return a message with the end of what the program printed."""
        printed = "".join(self._printed)[-_MAX_SHOWN_OUTPUT:]
        return f"{message}\nPrinted before:\n{printed}" if printed else message

    # --- statements -----------------------------------------------------------------------------------------------

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self.line = statement.lineno
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:  # noqa: C901, PLR0912  # one case for each statement
        match statement:
            case ast.Assign(targets, value):
                made = self._value(value)
                for target in targets:
                    self._assign(target, made)
            case ast.AugAssign(target, operator, value):
                old, new = self._node(_loaded(target)), self._node(value)
                self._assign(target, self._binary(operator, old, new))
            case ast.Expr(value):
                self._value(value)
            case ast.If(test, body, orelse):
                self._if(test, body, orelse)
            case ast.For(target, iterated, body, []):
                self._for(target, iterated, body)
            case ast.While(test, body, []):
                self._while(test, body)
            case ast.Try(body, [handler], [], []):
                self._try(body, handler)
            case ast.Break():
                raise _LoopLeft(goes_on=False)
            case ast.Continue():
                raise _LoopLeft(goes_on=True)
            case ast.Import(names) if all(name.name in _MODULES and name.asname is None for name in names):
                pass
            case ast.Pass():
                pass
            case _:
                raise self._unknown(statement)

    def _assign(self, target: ast.expr, value: _Value) -> None:
        if self._control and not isinstance(value, _Coroutine | FoundText):
            value = marked(value, words(self._control))
        match target:
            case ast.Name(name):
                self._names[name] = value
            case ast.Tuple(targets) | ast.List(targets):
                items = self._apply.items(_as_node(value))
                if len(items) != len(targets):
                    raise ValueError(f"{len(targets)} values expected, and there are {len(items)}")
                for each, item in zip(targets, items, strict=True):
                    self._assign(each, item)
            case ast.Subscript(holder, index):
                self._set_item(self._node(holder), self._node(index), _as_node(value))
            case _:
                raise self._unknown(target)

    def _set_item(self, holder: Node, index: Node, value: Node) -> None:
        key = plain(index)
        by = words(all_marks(index), self._control)
        match holder:
            case Array():
                holder.items[key] = picked(value, all_marks(index))
            case Record():
                holder.fields[as_key(key)] = picked(value, all_marks(index))
            case _:
                raise TypeError("only lists and dictionaries can be changed")
        holder.marks |= by

    def _if(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> None:
        tested = self._node(test)
        with_both = [*body, *orelse]
        before, by = self._control, words(all_marks(tested))
        self._control = before | by
        try:
            self._block(body if _truth(tested) else orelse)
        finally:
            # What runs after a loop that may have been left depends on the test, too.
            self._control = self._control if _may_leave(with_both) else before
            self._mark_changed(with_both, by)

    def _try(self, body: list[ast.stmt], handler: ast.ExceptHandler) -> None:
        match handler.type:
            case None | ast.Name("RuntimeError" | "Exception"):
                pass
            case _:
                raise PlanFailed(
                    f"line {self.line}: SyntaxError: except handles RuntimeError here, which a failed call raises"
                )
        if self._is_trying:
            raise PlanFailed(f"line {self.line}: SyntaxError: try inside of try is not available in a planned program")
        before, with_both = self._control, [*body, *handler.body]
        self._is_trying = True
        try:
            self._tried_block(body, handler)
        finally:
            by, self._tried, self._is_trying = self._tried, CLEAN, False
            self._control = before | by if _may_leave(with_both) else before
            self._mark_changed(with_both, by)

    def _tried_block(self, body: list[ast.stmt], handler: ast.ExceptHandler) -> None:
        try:
            self._block(body)
        except _CallError as error:
            if handler.name is not None:
                self._names[handler.name] = Leaf(error.message, words(self._control))
            self._block(handler.body)

    def _mark_changed(self, body: Sequence[ast.stmt], by: Marks) -> None:
        """Mark what a branch changes, or may have changed had it run."""
        if not by:
            return
        if any(isinstance(each, ast.Name) and each.id == "print" for part in body for each in ast.walk(part)):
            self._shown |= by  # who sees that nothing was printed knows which branch ran
        for name in {each.id for part in body for each in ast.walk(part) if isinstance(each, ast.Name)}:
            value = self._names.get(name)
            if isinstance(value, Array | Record):
                mark_in_place(value, by)
            elif isinstance(value, Leaf) and _is_stored(name, body):
                self._names[name] = marked(value, by)

    def _for(self, target: ast.expr, iterated: ast.expr, body: list[ast.stmt]) -> None:
        node, before = self._node(iterated), self._control
        self._control |= answers(node.marks)  # a list that the program has filtered is a pick; that of a model decides
        for item in self._apply.items(node):
            self._assign(target, item)
            if self._ends_loop(body):
                break
        self._leave_loop(body, before)

    def _while(self, test: ast.expr, body: list[ast.stmt]) -> None:
        before = self._control
        while True:
            tested = self._node(test)
            self._control |= words(all_marks(tested))
            if not _truth(tested) or self._ends_loop(body):
                break
        self._leave_loop(body, before)

    def _ends_loop(self, body: list[ast.stmt]) -> bool:
        try:
            self._block(body)
        except _LoopLeft as left:
            return not left.goes_on
        return False

    def _leave_loop(self, body: list[ast.stmt], before: Marks) -> None:
        """Mark what depends on how often a loop ran, if that is not the program's own decision."""
        by, self._control = self._control - before, before
        self._mark_changed(body, by)

    # --- expressions ----------------------------------------------------------------------------------------------

    def _node(self, node: ast.expr) -> Node:
        return _as_node(self._value(node))

    def _value(self, node: ast.expr) -> _Value:
        value = self._evaluate(node)
        size = len(value.value) if isinstance(value, Leaf) and isinstance(value.value, str) else 0
        self._charge(BYTES_OF_VALUE + size)
        return value

    def _evaluate(self, node: ast.expr) -> _Value:  # noqa: C901, PLR0911, PLR0912  # one case for each expression
        match node:
            case ast.Constant(str() | int() | float() | bool() | None as value):
                return Leaf(value)
            case ast.Name(name):
                if name not in self._names:
                    raise self._undefined(name, self._names)
                return self._names[name]
            case ast.Await(value):
                return self._await(value)
            case ast.List(elements) | ast.Tuple(elements) | ast.Set(elements):
                items = self._arguments(elements)
                return distinct(items) if isinstance(node, ast.Set) else Array(items)
            case ast.Dict(keys, values):
                return self._dictionary(keys, values)
            case ast.JoinedStr(values):
                parts = [self._node(value) for value in values]
                return Leaf("".join(map(_text, parts)), words(*map(all_marks, parts)))
            case ast.FormattedValue(value, conversion, spec):
                return self._formatted(self._node(value), conversion, spec)
            case ast.Subscript(holder, index):
                return self._item(self._node(holder), index)
            case ast.BinOp(left, operator, right):
                return self._binary(operator, self._node(left), self._node(right))
            case ast.UnaryOp(operator, operand):
                return self._unary(operator, self._node(operand))
            case ast.Compare(left, operators, comparators):
                return self._compare(left, operators, comparators)
            case ast.BoolOp(operator, values):
                return self._bool(operator, values)
            case ast.IfExp(test, body, orelse):
                return self._if_expression(test, body, orelse)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node)
            case ast.Call(function, arguments, keywords):
                return self._call(node, function, arguments, keywords)
        raise self._unknown(node)

    def _dictionary(self, keys: Sequence[ast.expr | None], values: Sequence[ast.expr]) -> Record:
        fields: dict[str, Node] = {}
        marks = CLEAN
        for key, value in zip(keys, values, strict=True):
            if key is None:
                raise PlanFailed(f"line {self.line}: SyntaxError: ** is not available in a planned program")
            name = self._node(key)
            fields[as_key(plain(name))] = self._node(value)
            marks |= words(all_marks(name))
        return Record(fields, marks)

    def _formatted(self, value: Node, conversion: int, spec: ast.expr | None) -> Leaf:
        form = "" if spec is None else plain(self._node(spec))
        if conversion != -1 or not _FORMAT.fullmatch(form):
            raise ValueError(f"the format {form!r} is not available in a planned program")
        text = format(plain(value), form) if form else _text(value)
        return Leaf(text, words(all_marks(value)))

    def _item(self, holder: Node, index: ast.expr) -> Node:
        if isinstance(index, ast.Slice):
            bounds = [None if each is None else self._node(each) for each in (index.lower, index.upper, index.step)]
            by = CLEAN.union(*[all_marks(each) for each in bounds if each is not None])
            part = slice(*[None if each is None else plain(each) for each in bounds])
            if isinstance(holder, Array):
                return Array([picked(item, by) for item in holder.items[part]], holder.marks | words(by))
            return Leaf(_as_text(holder)[part], words(all_marks(holder), by))
        key = self._node(index)
        match holder:
            case Array():
                return picked(holder.items[plain(key)], all_marks(key))
            case Record():
                name = as_key(plain(key))
                if name not in holder.fields:
                    raise KeyError(name)
                return picked(holder.fields[name], all_marks(key))
            case _:
                return Leaf(_as_text(holder)[plain(key)], words(all_marks(holder), all_marks(key)))

    def _binary(self, operator: ast.operator, left: Node, right: Node) -> Node:
        compute = _BINARY.get(type(operator))
        if compute is None:
            raise self._unknown(operator)
        if isinstance(left, Array) and isinstance(right, Array) and isinstance(operator, ast.Add):
            self._charge(BYTES_OF_VALUE * (len(left.items) + len(right.items)))
            return Array([*left.items, *right.items], left.marks | right.marks)
        a, b = plain(left), plain(right)
        if isinstance(operator, ast.Mod) and isinstance(a, str):
            raise TypeError("write an f-string in place of %")
        if isinstance(operator, ast.Mult):
            self._charge_product(a, b)
        return node_of(compute(a, b), words(all_marks(left), all_marks(right)))

    def _charge_product(self, left: Any, right: Any) -> None:
        for one, other in ((left, right), (right, left)):
            if isinstance(one, str | list) and isinstance(other, int):
                self._charge(BYTES_OF_VALUE * len(one) * max(other, 0))
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MAX_BITS:
            raise OverflowError(f"an integer has at most {_MAX_BITS:,} bits")

    def _unary(self, operator: ast.unaryop, operand: Node) -> Leaf:
        value, marks = plain(operand), words(all_marks(operand))
        match operator:
            case ast.Not():
                return Leaf(not value, marks)
            case ast.USub():
                return Leaf(-value, marks)
            case ast.UAdd():
                return Leaf(+value, marks)
        raise self._unknown(operator)

    def _compare(self, left: ast.expr, operators: Sequence[ast.cmpop], comparators: Sequence[ast.expr]) -> Leaf:
        nodes = [self._node(each) for each in (left, *comparators)]
        values = [plain(each) for each in nodes]
        results = [
            _COMPARISONS[type(operator)](one, other)
            for operator, one, other in zip(operators, values, values[1:], strict=False)
        ]
        return Leaf(all(results), words(*map(all_marks, nodes)))

    def _bool(self, operator: ast.boolop, values: Sequence[ast.expr]) -> Node:
        before, by = self._control, CLEAN
        node: Node = Leaf(None)
        for value in values:
            node = self._node(value)
            by |= words(all_marks(node))
            self._control = before | by  # whether the next one is computed depends on it
            if _truth(node) != isinstance(operator, ast.And):
                break
        self._control = before
        return marked(node, by)

    def _if_expression(self, test: ast.expr, body: ast.expr, orelse: ast.expr) -> Node:
        tested = self._node(test)
        before, by = self._control, all_marks(tested)
        self._control = before | words(by)
        node = self._node(body if _truth(tested) else orelse)
        self._control = before
        return picked(node, by)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp) -> Array | Record:
        made: list[tuple[Node | None, Node]] = []
        if isinstance(node, ast.DictComp):
            tests = self._iterate(node.generators, lambda: made.append((self._node(node.key), self._node(node.value))))
        else:
            tests = self._iterate(node.generators, lambda: made.append((None, self._node(node.elt))))
        marks = words(tests)
        if isinstance(node, ast.DictComp):
            keys = [key for key, _ in made if key is not None]
            names = [as_key(plain(key)) for key in keys]
            fields = {name: picked(item, tests) for name, (_, item) in zip(names, made, strict=True)}
            return Record(fields, marks.union(*[words(all_marks(key)) for key in keys]))
        items = [picked(item, tests) for _, item in made]
        return distinct(items, marks) if isinstance(node, ast.SetComp) else Array(items, marks)

    def _iterate(self, generators: Sequence[ast.comprehension], visit: Callable[[], None]) -> Marks:
        """Visit each combination of a comprehension, and return the marks of what decides which ones there are."""
        names, control = dict(self._names), self._control
        tests: Marks = CLEAN

        def loop(generators: Sequence[ast.comprehension]) -> None:
            nonlocal tests
            if not generators:
                visit()
                return
            first, *others = generators
            iterated = self._node(first.iter)
            tests |= iterated.marks
            for item in self._apply.items(iterated):
                self._assign(first.target, item)
                results = [self._node(test) for test in first.ifs]
                tests |= CLEAN.union(*map(all_marks, results))
                self._control |= answers(tests)  # a filter of the program is a pick; that of a model decides
                if all(map(_truth, results)):
                    loop(others)

        loop(generators)
        self._names, self._control = names, control
        return tests

    # --- calls ----------------------------------------------------------------------------------------------------

    def _call(
        self, node: ast.Call, function: ast.expr, arguments: Sequence[ast.expr], keywords: Sequence[ast.keyword]
    ) -> _Value:
        named = {keyword.arg: keyword.value for keyword in keywords if keyword.arg is not None}
        if len(named) != len(keywords):
            raise PlanFailed(f"line {self.line}: SyntaxError: ** is not available in a planned program")
        match function:
            case ast.Name(name) if name in self._functions:
                return self._tool_call(name, arguments, named)
            case ast.Name("print"):
                self._print([self._node(argument) for argument in arguments])
                return Leaf(None)
            case ast.Name("max" | "min" | "sorted" as name):
                return self._ordered(name, self._arguments(arguments), named)
            case ast.Name(name) if name in FUNCTIONS:
                return self._apply.call(name, self._arguments(arguments))
            case ast.Name(name):
                raise self._undefined(name, [*self._functions, *FUNCTIONS])
            case ast.Attribute(ast.Name("re" | "json" as module), name) if module not in self._names:
                return self._apply.of_module(module, name, self._arguments(arguments))
            case ast.Attribute(holder, name):
                value = self._value(holder)
                applied = value if isinstance(value, FoundText) else _as_node(value)
                return self._apply.method(applied, name, self._arguments(arguments), self._control)
        raise self._unknown(node)

    def _arguments(self, arguments: Sequence[ast.expr]) -> list[Node]:
        nodes: list[Node] = []
        for argument in arguments:
            if isinstance(argument, ast.Starred):
                nodes += self._apply.items(self._node(argument.value))
            else:
                nodes.append(self._node(argument))
        return nodes

    def _tool_call(self, name: str, arguments: Sequence[ast.expr], named: Mapping[str, ast.expr]) -> _Coroutine:
        parameters = self._functions[name]
        given = dict(zip(parameters, self._arguments(arguments), strict=False))
        if len(arguments) > len(parameters) or given.keys() & named.keys():
            raise TypeError(f"{name} takes {', '.join(parameters)}, each once")
        given |= {key: self._node(value) for key, value in named.items()}
        made = {key: plain(value) for key, value in given.items()}
        if len(json.dumps(made, allow_nan=False)) > self._limits.argument_bytes:
            raise ValueError(f"the arguments of a call have at most {self._limits.argument_bytes:,} bytes of JSON")
        marks = {key: marks_in(value) for key, value in given.items()}
        self._coroutines.append(_Coroutine(PlannedCall(name, made, self._control, marks)))
        return self._coroutines[-1]

    def _await(self, node: ast.expr) -> Node:
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"asyncio.gather", "gather"}:
            return Array(self._make(list(self._gathered(node.args))))
        coroutine = self._value(node)
        if not isinstance(coroutine, _Coroutine):
            raise TypeError("only calls of tools, and asyncio.gather of them, can be awaited")
        (result,) = self._make([coroutine])
        return result

    def _gathered(self, arguments: Sequence[ast.expr]) -> Iterator[_Coroutine]:
        for argument in arguments:
            made: list[_Value] = []
            match argument:
                case ast.Starred(ast.ListComp(element, generators) | ast.GeneratorExp(element, generators)):
                    self._iterate(generators, lambda: made.append(self._value(element)))  # noqa: B023  # it is called at once
                case _:
                    made.append(self._value(argument))
            for value in made:
                if not isinstance(value, _Coroutine):
                    raise TypeError("asyncio.gather takes calls of tools")
                yield value

    def _make(self, coroutines: Sequence[_Coroutine]) -> list[Node]:
        for coroutine in coroutines:
            if coroutine.is_awaited:
                raise ValueError("a call is awaited once")
            coroutine.is_awaited = True
        self._call_count += len(coroutines)
        if self._call_count > self._limits.calls:
            raise ValueError(f"the program makes more than {self._limits.calls:,} calls")
        first, self._used = self._used, self._used + len(coroutines)
        if self._used > len(self._results):
            raise _Waits([coroutine.call for coroutine in coroutines])
        made: list[Node] = []
        for coroutine, result in zip(coroutines, self._results[first : self._used], strict=True):
            marks = result.marks if isinstance(result, CallFailed) else all_marks(result)
            if self._is_trying:
                self._tried |= words(marks, *coroutine.call.marks.values())
            if isinstance(result, CallFailed):
                raise _CallError(self.line, result.message)
            made.append(marked(result, words(self._control)))
        return made

    def _print(self, values: Sequence[Node]) -> None:
        self._printed.append(" ".join(map(_text, values)) + "\n")
        self._charge(len(self._printed[-1]))
        self._shown |= CLEAN.union(*map(all_marks, values)) | self._control

    def _ordered(self, name: str, arguments: Sequence[Node], named: Mapping[str, ast.expr]) -> Node:
        items = self._apply.items(arguments[0]) if len(arguments) == 1 else list(arguments)
        key = named.get("key")
        keys = [item if key is None else self._applied(key, item) for item in items]
        by = CLEAN.union(*map(all_marks, keys))
        is_reversed = name == "max" or ("reverse" in named and _truth(self._node(named["reverse"])))
        numbers = sorted(range(len(items)), key=lambda number: plain(keys[number]), reverse=is_reversed)
        if name == "sorted":
            return Array([picked(items[number], by) for number in numbers])
        if not items:
            return self._node(named["default"]) if "default" in named else _none_of(name)
        return picked(items[numbers[0]], by)

    def _applied(self, key: ast.expr, item: Node) -> Node:
        if not isinstance(key, ast.Lambda) or len(key.args.args) != 1:
            raise PlanFailed(f"line {self.line}: SyntaxError: a key is a lambda with one parameter")
        before, name = dict(self._names), key.args.args[0].arg
        self._names[name] = item
        result = self._node(key.body)
        self._names = before
        return result

    # --- limits ---------------------------------------------------------------------------------------------------

    def _charge(self, size: int) -> None:
        self._bytes += size
        limit = self._limits.memory_bytes
        if self._bytes > limit:
            raise PlanFailed(f"MemoryError: the program made values of more than {limit:,} bytes")

    def _undefined(self, name: str, known: Iterable[str]) -> PlanFailed:
        return PlanFailed(f"line {self.line}: NameError: {name!r} is not defined{suggest(name, known)}")

    def _unknown(self, node: ast.AST) -> PlanFailed:
        return PlanFailed(f"line {self.line}: SyntaxError: {type(node).__name__} is not available in a planned program")


def _as_node(value: _Value) -> Node:
    if isinstance(value, _Coroutine):
        raise TypeError(
            f"a call of {value.call.name} has no value before it is awaited: write `await {value.call.name}(…)`"
        )
    if isinstance(value, FoundText):
        return Leaf(True, value.marks)  # noqa: FBT003  # as a condition; its groups are read by `group`
    return value


def _as_text(node: Node) -> str:
    value = plain(node)
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} has no items")
    return value


def _text(node: Node) -> str:
    return str(plain(node))


def _truth(node: Node) -> bool:
    return bool(plain(node))


def _none_of(name: str) -> Node:
    raise ValueError(f"{name}() of nothing")


def _loaded(target: ast.expr) -> ast.expr:
    """Return the expression that reads a target of an assignment."""
    return ast.parse(ast.unparse(target), mode="eval").body


def _may_leave(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Break | ast.Continue) for part in body for each in ast.walk(part))


def _is_stored(name: str, body: Sequence[ast.stmt]) -> bool:
    return any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
        for part in body
        for each in ast.walk(part)
    )
