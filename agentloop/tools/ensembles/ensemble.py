"""Ensembles: named groups of tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Self

from attrs import frozen

from agentloop.errors import InvalidDescriptor
from agentloop.tools.ensembles.building import Building
from agentloop.tools.ensembles.descriptor import Descriptor, DescriptorReader, TomlFile
from agentloop.tools.ensembles.ensemble_parts import EnsembleParts
from agentloop.tools.ensembles.import_path import AllowedModules
from agentloop.values.deduplicator import Deduplicator, Similarity

NO_DEDUPLICATORS: Mapping[str, Deduplicator | Similarity] = MappingProxyType({})
"""No file may name one."""


@frozen(eq=False)
class Ensemble(EnsembleParts):
    """A named group of tools that is configured, enabled and disabled together; give it to a loop among the tools.

    It is immutable: its methods return changed copies. An ensemble with `start` and `stop` is started by the first
    execution that has it and stopped by the last; a loop that is entered (`async with loop`) holds it all the while. When
    starting fails, that is logged, and calls of its tools fail with `ToolUnavailable`; everything else goes on.

        shop = Ensemble("shop", [find_order, refund], start=pool.open, stop=pool.close, defaults={"limit": 10})
        loop = AgentLoop.for_model("openai:gpt-5", tools=[shop.without("refund"), add])
    """

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        *,
        allow: Iterable[str] = (),
        allow_outside: bool = False,
        deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
    ) -> Self:
        """Read the ensemble that a TOML file describes.

        Args:
            path: the file.
            allow: the modules that its import paths may name, each with all below it, such as `myapp.tools`; the ensembles
                of this package may always be named.
            allow_outside: whether a `source` may lie outside of the folder of the file that names it.
            deduplicators: what the key `deduplicator` may name: deduplicators, or functions of two calls.

        Raises:
            InvalidDescriptor: with every mistake in the file, each with its key and its line. Nothing is imported when an
                import path is not allowed.
            TypeError: when `allow` is not a list of modules.
        """
        reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
        return Building(cls).checked(_sound(reader, [reader.ensemble(reader.file(Path(path)))]))[0]


def load_ensembles(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
) -> tuple[Ensemble, ...]:
    """Read the ensembles that a TOML file lists, in tables `[ensembles.NAME]`.

    An ensemble whose modules cannot be imported is logged and offers no tools; its `failure` says why. The others work.

    Arguments and errors are those of `Ensemble.from_toml`.
    """
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
    return tuple(Building(Ensemble).checked(_sound(reader, reader.ensembles(reader.file(Path(path))))))


def read_descriptors(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = None,
) -> list[Descriptor]:
    """Read what a TOML file of either kind says, importing nothing.

    Arguments and errors are those of `Ensemble.from_toml`; without `deduplicators` nothing is known of what a program gives,
    and which of them a file names is not looked at.
    """
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
    file = reader.file(Path(path))
    return _sound(reader, reader.ensembles(file) if _lists(file) else [reader.ensemble(file)])


def _lists(file: TomlFile) -> bool:
    return "ensembles" in file.data


def _sound(reader: DescriptorReader, descriptors: list[Descriptor]) -> list[Descriptor]:
    if reader.mistakes:
        raise InvalidDescriptor(reader.mistakes)
    return descriptors
