"""The order of tests by chance, from a seed that is printed, so that no test comes to depend on the ones before it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

import pytest

_OPTION = "--shuffle"


class Worker(Protocol):
    """A worker of pytest-xdist that is to be started."""

    config: pytest.Config
    workerinput: dict[str, str]


def add_option(parser: pytest.Parser) -> None:
    """Add the option `--shuffle`."""
    parser.addoption(
        _OPTION,
        metavar="SEED",
        default="no",
        help="run the tests in the order of this seed, a word or a number; `new` chooses one, and `no`, the default, keeps the order of the files",
    )


def choose_seed(config: pytest.Config) -> None:
    """Choose a new seed if one is asked for; the workers of pytest-xdist take that of the main process."""
    given: dict[str, str] = getattr(config, "workerinput", {})
    if _OPTION in given:
        config.option.shuffle = given[_OPTION]
    elif config.option.shuffle == "new":
        config.option.shuffle = str(random.randrange(1_000_000))


def pass_seed(node: Worker) -> None:
    """Give a worker of pytest-xdist, which begins with the same command line, the seed of the main process."""
    node.workerinput[_OPTION] = node.config.option.shuffle


def shuffled(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return tests in the order of a seed: files by chance, and the tests of each file by chance.

    The order of a file depends on the seed and its own tests only, so that it is the same when the file is run alone.
    """
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        files[item.nodeid.partition("::")[0]].append(item)
    names = list(files)
    random.Random(seed).shuffle(names)
    for name in names:
        random.Random(f"{seed} {name}").shuffle(files[name])
    return [item for name in names for item in files[name]]


def print_seed(terminal: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how the order can be repeated."""
    if config.option.shuffle != "no":
        terminal.write_line(f"the tests ran in a shuffled order; {_OPTION} {config.option.shuffle} repeats it")
