"""A small shop: a real SQLite database, made on the spot."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from attrs import frozen

_TABLES = """
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL);
    CREATE TABLE orders (
        number INTEGER PRIMARY KEY,
        customer_id INTEGER NOT NULL REFERENCES customers (id),
        item TEXT NOT NULL,
        cents INTEGER NOT NULL,
        status TEXT NOT NULL
    );
    CREATE TABLE refunds (id INTEGER PRIMARY KEY, order_number INTEGER NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, subject TEXT NOT NULL);
"""
_CUSTOMERS = (
    (1, "Ada Lovelace", "ada@example.org"),
    (2, "Charles Babbage", "charles@example.org"),
    (3, "Grace Hopper", "grace@example.org"),
)
_ORDERS = (
    (1002, 1, "brass telescope", 24900, "on its way, last seen at the depot in Leeds"),
    (1003, 2, "set of gears", 7400, "delivered"),
    (1009, 1, "desk lamp", 8900, "delivered"),
    (1015, 1, "box of punched cards", 1850, "packed and waiting for the next van"),
    (1022, 3, "moth trap", 2100, "delivered"),
)


@frozen
class Customer:
    """A customer."""

    id: int
    name: str
    email: str


@frozen
class Order:
    """An order of one item."""

    number: int
    item: str
    cents: int
    status: str


@frozen
class Shop:
    """The shop's database. Each call opens a connection of its own, since tools run side by side in threads.

    Attributes:
        path: the SQLite file.
    """

    path: Path

    @classmethod
    def founded(cls, path: Path) -> Shop:
        """Make the database, with a few customers and orders."""
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(_TABLES)
            connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", _CUSTOMERS)
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?)", _ORDERS)
        return cls(path)

    def customer(self, name: str) -> Customer:
        """Find a customer by name.

        Raises:
            LookupError: when there is none.
        """
        rows = self._rows("SELECT id, name, email FROM customers WHERE name = ? COLLATE NOCASE", name)
        if not rows:
            raise LookupError(f"there is no customer named {name!r}")
        return Customer(*rows[0])

    def order(self, number: int) -> Order:
        """Find an order by number.

        Raises:
            LookupError: when there is none; names the number most like it.
        """
        rows = self._rows("SELECT number, item, cents, status FROM orders WHERE number = ?", number)
        if rows:
            return Order(*rows[0])
        numbers = [str(known) for (known,) in self._rows("SELECT number FROM orders ORDER BY number")]
        closest = get_close_matches(str(number), numbers, n=1, cutoff=0.0)
        raise LookupError(f"there is no order {number}; the number most like it is {closest[0]}")

    def orders_of(self, customer_id: int) -> list[Order]:
        """List the orders of a customer."""
        query = "SELECT number, item, cents, status FROM orders WHERE customer_id = ? ORDER BY number"
        return [Order(*row) for row in self._rows(query, customer_id)]

    def pay_back(self, order_number: int, cents: int) -> int:
        """Book a refund and return its id."""
        return self._added("INSERT INTO refunds (order_number, cents) VALUES (?, ?)", order_number, cents)

    def open_ticket(self, customer_id: int, subject: str) -> int:
        """Open a ticket for a colleague and return its id."""
        return self._added("INSERT INTO tickets (customer_id, subject) VALUES (?, ?)", customer_id, subject)

    def refund_count(self) -> int:
        """Count the refunds that were booked."""
        return len(self._rows("SELECT id FROM refunds"))

    def ticket_count(self) -> int:
        """Count the tickets that were opened."""
        return len(self._rows("SELECT id FROM tickets"))

    def _rows(self, query: str, *values: object) -> Sequence[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, values).fetchall()

    def _added(self, statement: str, *values: object) -> int:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).lastrowid or 0
