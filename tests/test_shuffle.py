"""The order of tests is one by chance that a seed repeats, and leaks are reported with the test that has left something."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, cast

import pytest
from attrs import define, field, frozen

from tests.leaks import Leaks, OpenTransports, new_descriptors, open_descriptors
from tests.shuffle import Worker, choose_seed, pass_seed, shuffled


@frozen
class Item:
    """A test, as far as its order is concerned."""

    nodeid: str


@define
class Options:
    """The options of pytest."""

    shuffle: str


@define
class Config:
    """The configuration of a process; only that of a worker has an input."""

    option: Options
    workerinput: dict[str, str] = field(factory=dict)


@define
class Node:
    """A worker that is to be started."""

    config: Config
    workerinput: dict[str, str] = field(factory=dict)


def order(names: list[str], seed: str) -> list[str]:
    items = [cast("pytest.Item", Item(name)) for name in names]
    return [item.nodeid for item in shuffled(items, seed)]


NAMES = [f"{file}::{number}" for file in "abcdefgh" for number in range(8)]


def test_a_seed_repeats_an_order_and_another_one_gives_another() -> None:
    """Every test is there once, and files stay together."""
    one = order(NAMES, "1")
    assert one == order(NAMES, "1")
    assert one != order(NAMES, "2")
    assert sorted(one) == NAMES
    files = [name[0] for name in one]
    assert len([file for index, file in enumerate(files) if index == 0 or files[index - 1] != file]) == 8


def test_a_file_alone_has_the_order_that_it_has_among_others() -> None:
    """A failure can be repeated with the tests of its file."""
    alone = [name for name in NAMES if name.startswith("c")]
    assert order(alone, "1") == [name for name in order(NAMES, "1") if name.startswith("c")]


def test_a_worker_takes_the_seed_of_the_main_process() -> None:
    """A worker begins with the same command line, and would choose a seed of its own."""
    node = Node(Config(Options("7")))
    pass_seed(cast("Worker", node))
    started = Config(Options("new"), workerinput=node.workerinput)
    choose_seed(cast("pytest.Config", started))
    assert started.option.shuffle == "7"


def test_new_descriptors_are_those_that_lead_somewhere_else() -> None:
    """A socket that was opened is told, also under the number of one that was closed."""
    first, _ = sockets = socket.socketpair()
    before = open_descriptors()
    assert new_descriptors(before) == {}
    reader, writer = os.pipe()
    assert set(new_descriptors(before)) == {reader, writer}
    os.dup2(writer, first.fileno())
    assert first.fileno() in new_descriptors(before)
    for each in (reader, writer):
        os.close(each)
    for pair in sockets:
        pair.close()
    assert new_descriptors(before) == {}


def test_what_is_left_is_reported_with_its_test() -> None:
    """A socket that a later test closes is told with both; one of a fixture of the module is not told."""
    leaks = Leaks()
    leaks.begin({})
    leaks.end_test("a", {("socket", 1): "one"}, is_last=False)
    leaks.end_test("b", {("socket", 2): "two"}, is_last=False)
    leaks.end_test("c", {("process", 3): "three"}, is_last=True)
    leaks.end_test("d", {("process", 3): "three", ("task", 4): "four"}, is_last=True)
    leaks.end()
    assert leaks.found == [
        "a left a socket: one, until b",
        "d left a task: four",
        "c left a process: three, until the end",
    ]


def test_a_transport_whose_event_loop_is_closed_is_left() -> None:
    """Nothing can close it any more."""
    opened = OpenTransports()
    own, other = socket.socketpair()

    async def program() -> Any:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=own)
        opened._opened.add(transport)
        assert [*opened.left()] == []
        return transport

    with asyncio.Runner() as runner:
        transport = runner.run(program())
    assert [*opened.left()] == [transport]
    transport._sock = None
    assert [*opened.left()] == []
    own.close()
    other.close()
