"""The mutants of some modules: every place where an operator of Cosmic Ray can change the code, and a seeded sample of them."""

from __future__ import annotations

import ast
import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from parso import parse
from parso.python.tree import Keyword

Place: TypeAlias = tuple[int, int]
"""A line, from 1, and a column, from 0."""


@frozen
class Mutant:
    """A module with one mistake in it.

    Attributes:
        module: the path of the module inside of the repository.
        line: the 1-based line of the mistake.
        operator: the kind of the mistake.
        before: the line as it is.
        after: the line with the mistake.
        source: the module with the mistake.
    """

    module: str
    line: int
    operator: str
    before: str
    after: str
    source: str

    @property
    def id(self) -> str:
        """A short name, which stays the same when other lines of the module change."""
        text = f"{self.module}\n{self.operator}\n{self.before.strip()}\n{self.after.strip()}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]


class DeleteCall(Operator):  # type: ignore[misc]  # Cosmic Ray has no types
    """Deletes a statement that is a call, such as one that records something."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        """Yield the place of the statement."""
        if node.type == "simple_stmt" and node.children[0].type in {"atom_expr", "power"}:
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the statement."""
        first = node.children[0].get_first_leaf()
        node.children[0] = Keyword("pass", first.start_pos, first.prefix)
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return nothing: Cosmic Ray tests its own operators with them."""
        return ()


class ReturnNone(Operator):  # type: ignore[misc]  # Cosmic Ray has no types
    """Returns None in place of a value."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[Place, Place]]:
        """Yield the place of the value."""
        if node.type == "return_stmt" and len(node.children) > 1 and node.children[1].get_code().strip() != "None":
            yield node.children[1].start_pos, node.children[1].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Replace the value."""
        node.children[1] = parse(" None")
        return node

    @classmethod
    def examples(cls) -> tuple[()]:
        """Return nothing: Cosmic Ray tests its own operators with them."""
        return ()


def operators() -> Iterator[tuple[str, Operator]]:
    """Yield the operators with the names of their families; a place gets one mutant of each family."""
    yield "DeleteCall", DeleteCall()
    yield "ReturnNone", ReturnNone()
    for name in sorted(operator_names()):
        family = name.partition("/")[2].partition("Operator_")[0]
        # Variables need names, and what is identical is equal in this package: its constants have no `==` of their own.
        if not family.startswith("Variable") and not name.endswith(("Is_Eq", "IsNot_NotEq")):
            yield family, get_operator(name)()


@frozen
class _Module:
    """A module, parsed.

    Attributes:
        name: its path inside of the repository.
        source: its text.
        tree: its syntax tree.
        meaning: what two modules have in common between which no test can tell.
    """

    name: str
    source: str
    tree: ast.Module
    meaning: str

    def candidates(self, seed: int) -> Iterator[tuple[str, _Candidate]]:
        """Yield one candidate of each family of operators at each place, with what it is ordered by.

        The order and the choice are those of a hash of the function, the line and the seed: a change of the module replaces only
        the mutants of the lines that it changes.
        """
        nodes, left_out = list(ast_nodes(get_ast(self.source))), list(_ranges_without_effect(self.tree))
        by_place: dict[tuple[Place, str], list[_Candidate]] = defaultdict(list)
        for family, operator in operators():
            places = chain.from_iterable(operator.mutation_positions(node) for node in nodes)
            for occurrence, (start, _) in enumerate(places):
                if not any(first <= start < last for first, last in left_out):
                    by_place[start, family].append(_Candidate(self, start[0], operator, occurrence))
        lines, functions = self.source.splitlines(), _functions_by_line(self.tree)
        equal: Counter[str] = Counter()
        for (start, family), choices in sorted(by_place.items()):
            line = start[0]
            place = "\n".join([str(seed), self.name, functions.get(line, ""), family, lines[line - 1].strip()])
            equal[place] += 1
            order = hashlib.sha256(f"{place}\n{equal[place]}".encode()).hexdigest()
            yield order, random.Random(order).choice(choices)


@frozen
class _Candidate:
    """A mistake that may be made.

    Attributes:
        module: the module.
        line: the 1-based line.
        operator: makes the mistake.
        occurrence: which of the places of the operator.
    """

    module: _Module
    line: int
    operator: Operator
    occurrence: int

    def make(self) -> Mutant | None:
        """Return the mutant; None if the code does not compile or means the same."""
        module = self.module
        try:
            changed = mutate_code(module.source, self.operator, self.occurrence)
        except AttributeError:  # Cosmic Ray cannot replace an exception that has a dotted name
            return None
        try:
            if changed is None or _meaning_of(changed) == module.meaning:
                return None
        except SyntaxError:
            return None
        before, after = module.source.splitlines(), changed.splitlines()
        # A decorator that was removed takes its line with it.
        line = after[self.line - 1] if len(before) == len(after) else ""
        return Mutant(module.name, self.line, type(self.operator).__name__, before[self.line - 1], line, changed)


def _functions_by_line(tree: ast.Module) -> dict[int, str]:
    """Return the innermost function of each line, with the classes and functions around it."""
    found: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = prefix
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{child.name}"
                found.update(dict.fromkeys(range(child.lineno, (child.end_lineno or 0) + 1), name))
            visit(child, name)

    visit(tree, "")
    return found


_CACHES = {"cache", "lru_cache"}
_CLASS_DECORATORS = {"define", "frozen"}


class _Normalized(ast.NodeTransformer):
    """Removes from a tree what no test should find."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove caches: without one, the same takes longer."""
        node.decorator_list = [each for each in node.decorator_list if _name_of(each) not in _CACHES]
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Remove what allows other ways to pass the fields of a class."""
        if _name_of(node) in _CLASS_DECORATORS:
            node.keywords = [each for each in node.keywords if each.arg != "kw_only"]
        return self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """Take False for None: callers ask whether a result is true."""
        if isinstance(node.value, ast.Constant) and node.value.value is False:
            node.value = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Eq(self, node: ast.Eq) -> ast.AST:
        """Take `==` for `is`: whether equal strings and numbers are identical is up to the interpreter."""
        return ast.Is()

    def visit_NotEq(self, node: ast.NotEq) -> ast.AST:
        """Take `!=` for `is not`."""
        return ast.IsNot()


def _name_of(node: ast.expr) -> str:
    """Return the name of a decorator, with or without arguments."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.id if isinstance(function, ast.Name) else ""


def _meaning_of(source: str) -> str:
    return ast.dump(_Normalized().visit(ast.parse(source)))


def _ranges_without_effect(tree: ast.Module) -> Iterator[tuple[Place, Place]]:
    """Yield the parts of a module that do nothing when it runs: annotations, overloads, marks of abstract methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _decorator_ranges(node)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield (node.lineno, 0), (node.body[-1].end_lineno or 0, 1_000)
        for part in _parts_without_effect(node):
            yield (part.lineno, part.col_offset), (part.end_lineno or 0, part.end_col_offset or 0)


def _parts_without_effect(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    match node:
        case ast.arg(annotation=ast.expr() as annotation):
            yield annotation
        case ast.FunctionDef(returns=ast.expr() as returns) | ast.AsyncFunctionDef(returns=ast.expr() as returns):
            yield returns
        case ast.AnnAssign(annotation=annotation):
            yield node if ast.unparse(annotation).endswith("TypeAlias") else annotation
        case ast.Call(func=ast.Name(id="zip"), keywords=keywords):
            yield from [keyword.value for keyword in keywords]  # a check of what the code guarantees already
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            # What is shown, and which other ways there are to pass it.
            yield from [keyword.value for keyword in keywords if keyword.arg in {"repr", "kw_only"}]


def _decorator_ranges(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[Place, Place]]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id == "abstractmethod":
            yield (decorator.lineno, 0), (decorator.lineno, 1_000)
        elif isinstance(decorator, ast.Name) and decorator.id == "overload":
            yield (decorator.lineno, 0), (node.end_lineno or 0, 1_000)


def sample_of(root: Path, places: Sequence[str], count: int, seed: int) -> list[Mutant]:
    """Return a seeded sample of the mutants of some modules, all of them if there are fewer.

    After a change of the modules it is nearly the same: it has other mutants for those of the lines that have changed.

    Args:
        root: the folder of the repository.
        places: modules and packages, as paths inside of `agentloop`.
        count: the number of mutants.
        seed: selects them.
    """
    candidates: list[tuple[str, _Candidate]] = []
    for path in sorted({path for place in places for path in _modules_at(root / "agentloop" / place)}):
        source = path.read_text(encoding="utf-8")
        candidates += _Module(str(path.relative_to(root)), source, ast.parse(source), _meaning_of(source)).candidates(
            seed
        )
    found: dict[str, Mutant] = {}
    for _, candidate in sorted(candidates, key=lambda each: each[0]):
        mutant = candidate.make()
        if mutant is not None:
            found.setdefault(mutant.id, mutant)
        if len(found) == count:
            break
    return list(found.values())


def _modules_at(place: Path) -> list[Path]:
    return [place] if place.is_file() else list(place.rglob("*.py"))
