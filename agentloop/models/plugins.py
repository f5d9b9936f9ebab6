"""Providers and wire formats of other distributions: their entry points in the group `agentloop.providers`."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable
from importlib.metadata import EntryPoint, entry_points

from agentloop.errors import ConfigurationError

GROUP = "agentloop.providers"
"""The group of entry points, each of which is a `Preset` or a subclass of `WireFormat`, by its name."""


def plugin_names() -> tuple[str, ...]:
    """Return the names of all entry points of the group, sorted; nothing is loaded."""
    return tuple(sorted({entry.name for entry in entry_points(group=GROUP)}))


def load_plugin(name: str, builtin: Container[str]) -> object | None:
    """Load what another distribution has registered under a name.

    Args:
        name: the name, in lower case.
        builtin: the names of this package, which others cannot take; an entry point that does causes a warning.

    Returns:
        What the entry point names; None if there is none.

    Raises:
        ConfigurationError: several distributions have the name, or theirs cannot be imported.
    """
    found = []
    for entry in entry_points(group=GROUP):
        if entry.name in builtin:
            warnings.warn(
                f"{_described(entry)} is not used: {entry.name!r} is a name of agentloop itself", RuntimeWarning, 2
            )
        elif entry.name == name:
            found.append(entry)
    if not found:
        return None
    if len(found) > 1:
        raise ConfigurationError(f"{' and '.join(map(_described, found))} have the same name; uninstall one of them")
    try:
        loaded: object = found[0].load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{_described(found[0])} cannot be loaded: {reason}") from error
    return loaded


def wrong_kind(name: str, loaded: object, expected: str) -> ConfigurationError:
    """Return the error for an entry point that names something else than what was looked for."""
    found = f"the class {loaded.__name__}" if isinstance(loaded, type) else f"an object of {type(loaded).__name__}"
    return ConfigurationError(f"the entry point {name!r} of the group {GROUP} has to be {expected}, not {found}")


def wrong_name(name: str, own_name: str) -> ConfigurationError:
    """Return the error for an entry point whose object has another name."""
    return ConfigurationError(
        f"the entry point {name!r} of the group {GROUP} has an object with another name, {own_name!r}"
    )


def known_names(builtin: Iterable[str]) -> str:
    """Return the names of this package and of other distributions, for an error."""
    return ", ".join(dict.fromkeys((*builtin, *plugin_names())))


def _described(entry: EntryPoint) -> str:
    owner = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"the entry point {entry.name!r}{owner}"
