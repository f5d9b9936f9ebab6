"""Type hints, resolved with every name that their author could use."""

from __future__ import annotations

import ast
import importlib
import inspect
import linecache
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.util import resolve_name
from types import FrameType, MappingProxyType, SimpleNamespace
from typing import Any

from attrs import frozen

from agentloop.errors import ToolDefinitionError

_LOCALS = ".<locals>."


def function_hints(routine: Any) -> dict[str, Any]:
    """Return the type hints of a function, with those of its result under `return`.

    A hint that is text may name what the module of the function has, what the functions around it have while they run, and what
    the module imports only under `TYPE_CHECKING`. Such an import is done now, if a hint names it.

    Args:
        routine: the function or method.

    Raises:
        ToolDefinitionError: a hint cannot be resolved.
    """
    inner = inspect.unwrap(routine)
    inner = getattr(inner, "__func__", inner)
    namespace = getattr(inner, "__globals__", {})
    return _resolve(
        lambda names: typing.get_type_hints(routine, localns=names or None, include_extras=True),
        namespace,
        _names_around(inner, namespace),
    )


def class_hints(cls: Any) -> dict[str, Any]:
    """Return the type hints of a class and of its bases, resolved as those of a function.

    Raises:
        ToolDefinitionError: a hint cannot be resolved.
    """
    namespace = _namespace_of(cls.__module__)
    # What the module has comes first: a field may have the name of its type, and the value in the class is then its default.
    return _resolve(
        lambda names: typing.get_type_hints(cls, localns=names or None, include_extras=True),
        namespace,
        others={**_names_around(cls, namespace), **vars(cls)},
        subject=f"a type hint of {cls.__qualname__}",
    )


def is_type_alias(hint: Any) -> bool:
    """Return whether the hint is an alias made by a `type` statement, or by `TypeAliasType` of typing_extensions, with or without arguments."""
    return type(typing.get_origin(hint) or hint).__name__ == "TypeAliasType"


def alias_value(alias: Any) -> Any:
    """Return the type that an alias stands for, without text in place of types.

    Raises:
        ToolDefinitionError: a part of it cannot be resolved.
    """
    named = typing.get_origin(alias) or alias
    namespace = _namespace_of(named.__module__)
    holder = SimpleNamespace(__annotations__={"value": named.__value__})
    value = _resolve(
        lambda names: typing.get_type_hints(holder, globalns=namespace, localns=names or None, include_extras=True),
        namespace,
        subject=f"a type in the alias {named.__name__}",
    )["value"]
    return substitute(value, dict(zip(named.__type_params__, typing.get_args(alias), strict=False)))


def substitute(hint: Any, types: Mapping[Any, Any]) -> Any:
    """Return a type with other types in place of its type variables."""
    if isinstance(hint, typing.TypeVar):
        return types.get(hint, hint)
    parameters = () if isinstance(hint, type) and not typing.get_args(hint) else getattr(hint, "__parameters__", ())
    return hint[tuple([types.get(parameter, parameter) for parameter in parameters])] if parameters and types else hint


# --- names ----------------------------------------------------------------------------------------------------------


def _resolve(
    read: Callable[[dict[str, Any]], dict[str, Any]],
    namespace: dict[str, Any],
    names: Mapping[str, Any] = MappingProxyType({}),
    *,
    others: Mapping[str, Any] = MappingProxyType({}),
    subject: str = "a type hint",
) -> dict[str, Any]:
    """Return hints; import what they name and the module imports only for type checkers.

    Args:
        read: returns the hints, given names that come before those of the module.
        namespace: the names of the module.
        names: names that come before them.
        others: names that are used if neither has them.
        subject: what cannot be resolved, for error messages.

    Raises:
        ToolDefinitionError: a hint cannot be resolved.
    """
    while True:
        try:
            return read(dict(names))
        except NameError as error:
            name = getattr(error, "name", None) or ""
            if name in names:
                raise _unresolved(error, subject) from error
            if name in others:
                names = {**names, name: others[name]}
            elif (found := _imports_for_checkers(namespace).get(name)) is not None:
                names = {**names, name: found.load(name, namespace)}
            else:
                raise _unresolved(error, subject) from error
        except Exception as error:
            raise _unresolved(error, subject) from error


def _unresolved(error: Exception, subject: str) -> ToolDefinitionError:
    hint = "; import it, or define it at the top level of the module" if isinstance(error, NameError) else ""
    return ToolDefinitionError(f"{subject} cannot be resolved: {error}{hint}")


def _namespace_of(module: str | None) -> dict[str, Any]:
    return vars(sys.modules[module]) if module in sys.modules else {}


def _names_around(definition: Any, namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the functions around a definition: of the one that runs now, and those that a function uses."""
    around = (
        definition.__qualname__.rpartition(_LOCALS)[0] if _LOCALS in getattr(definition, "__qualname__", "") else ""
    )
    if not around:
        return {}
    found: dict[str, Any] = {}
    for frame in _frames():
        owner = frame.f_code.co_qualname
        if frame.f_globals is namespace and (around == owner or around.startswith(owner + _LOCALS)):
            found = {**frame.f_locals, **found}
    return {**found, **_closure(definition)}


def _closure(definition: Any) -> dict[str, Any]:
    found = {}
    cells = getattr(definition, "__closure__", None) or ()
    for name, cell in zip(definition.__code__.co_freevars, cells, strict=True) if cells else ():
        with suppress(ValueError):  # the variable has no value yet
            found[name] = cell.cell_contents
    return found


def _frames() -> Iterator[FrameType]:
    frame = inspect.currentframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


# --- imports for type checkers --------------------------------------------------------------------------------------


@frozen
class _Import:
    """An import in an `if TYPE_CHECKING:`.

    Attributes:
        module: the module, with a dot for each level above the one that imports.
        attribute: what is imported from it; empty for the module itself.
        is_top: whether the name is the package around the module, as `a` for `import a.b`.
    """

    module: str
    attribute: str = ""
    is_top: bool = False

    def load(self, name: str, namespace: Mapping[str, Any]) -> Any:
        """Import it.

        Raises:
            ToolDefinitionError: it cannot be imported.
        """
        try:
            package = namespace.get("__package__") or ""
            full = resolve_name(self.module, package) if self.module.startswith(".") else self.module
            module = importlib.import_module(full)
            if not self.attribute:
                return sys.modules[full.partition(".")[0]] if self.is_top else module
            if not hasattr(module, self.attribute) and hasattr(module, "__path__"):
                return importlib.import_module(f"{full}.{self.attribute}")
            return getattr(module, self.attribute)
        except Exception as error:
            raise ToolDefinitionError(
                f"a type hint cannot be resolved: {name!r} is imported under TYPE_CHECKING alone, and to import it now fails with "
                f"{type(error).__name__}: {error!s:.200}; import it outside of that block, or annotate a type that can be imported"
            ) from error


def _imports_for_checkers(namespace: Mapping[str, Any]) -> Mapping[str, _Import]:
    """Return what a module imports only for type checkers, by the names that it gives."""
    file = namespace.get("__file__")
    return _imports_in(file) if isinstance(file, str) else {}


@lru_cache(maxsize=64)
def _imports_in(file: str) -> Mapping[str, _Import]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):  # a module without its source
        return {}
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and _is_for_checkers(node.test)]
    return dict([entry for block in blocks for statement in block for entry in _entries(statement)])


def _is_for_checkers(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else test.id if isinstance(test, ast.Name) else ""
    return name == "TYPE_CHECKING"


def _entries(statement: ast.stmt) -> Iterator[tuple[str, _Import]]:
    if isinstance(statement, ast.ImportFrom):
        module = "." * statement.level + (statement.module or "")
        for alias in statement.names:
            yield alias.asname or alias.name, _Import(module, alias.name)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0], _Import(alias.name, is_top=not alias.asname)
