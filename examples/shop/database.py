"""The database of a small shop, in SQLite, and a carrier that fails the first time it is asked about one of the orders."""

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
        status TEXT NOT NULL,
        carrier_is_silent INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE refunds (id INTEGER PRIMARY KEY, order_number INTEGER NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE tickets (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, subject TEXT NOT NULL);
    CREATE TABLE vouchers (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, cents INTEGER NOT NULL);
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
_SILENT_ORDER = 1015
"""The order whose first tracking request fails."""


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
    """The shop's database. Each method opens its own connection, because tools run in parallel threads.

    Attributes:
        path: the SQLite file.
    """

    path: Path

    @classmethod
    def create(cls, path: Path) -> Shop:
        """Create the database, with a few customers and orders."""
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(_TABLES)
            connection.executemany("INSERT INTO customers VALUES (?, ?, ?)", _CUSTOMERS)
            connection.executemany("INSERT INTO orders VALUES (?, ?, ?, ?, ?, 0)", _ORDERS)
            connection.execute("UPDATE orders SET carrier_is_silent = 1 WHERE number = ?", (_SILENT_ORDER,))
        return cls(path)

    def customer(self, name: str) -> Customer:
        """Return a customer by name.

        Raises:
            LookupError: there is no customer of this name.
        """
        rows = self._rows("SELECT id, name, email FROM customers WHERE name = ? COLLATE NOCASE", name)
        if not rows:
            raise LookupError(f"there is no customer named {name!r}")
        return Customer(*rows[0])

    def order(self, number: int) -> Order:
        """Return an order by number.

        Raises:
            LookupError: there is no such order; the message suggests the closest number.
        """
        rows = self._rows("SELECT number, item, cents, status FROM orders WHERE number = ?", number)
        if rows:
            return Order(*rows[0])
        numbers = [str(existing) for (existing,) in self._rows("SELECT number FROM orders ORDER BY number")]
        closest = get_close_matches(str(number), numbers, n=1, cutoff=0.0)
        raise LookupError(f"there is no order {number}; the closest number is {closest[0]}")

    def track(self, number: int) -> Order:
        """Ask the carrier where an order is.

        Raises:
            LookupError: there is no such order; the message suggests the closest number.
            ConnectionError: the carrier does not respond.
        """
        order = self.order(number)
        if self._update("UPDATE orders SET carrier_is_silent = 0 WHERE number = ? AND carrier_is_silent", number):
            raise ConnectionError("the carrier does not respond")
        return order

    def orders_of(self, customer_id: int) -> list[Order]:
        """Return the orders of a customer."""
        query = "SELECT number, item, cents, status FROM orders WHERE customer_id = ? ORDER BY number"
        return [Order(*row) for row in self._rows(query, customer_id)]

    def refund(self, order_number: int, cents: int) -> int:
        """Book a refund and return its id."""
        return self._insert("INSERT INTO refunds (order_number, cents) VALUES (?, ?)", order_number, cents)

    def open_ticket(self, customer_id: int, subject: str) -> int:
        """Open a ticket for a colleague and return its id."""
        return self._insert("INSERT INTO tickets (customer_id, subject) VALUES (?, ?)", customer_id, subject)

    def give_voucher(self, customer_id: int, cents: int) -> int:
        """Create a voucher for a customer and return its id."""
        return self._insert("INSERT INTO vouchers (customer_id, cents) VALUES (?, ?)", customer_id, cents)

    def refunds(self) -> list[tuple[int, int]]:
        """Return the refunds: order number and cents."""
        return [(order, cents) for order, cents in self._rows("SELECT order_number, cents FROM refunds ORDER BY id")]

    def tickets(self) -> list[tuple[int, str]]:
        """Return the tickets: customer id and subject."""
        return [
            (customer, subject)
            for customer, subject in self._rows("SELECT customer_id, subject FROM tickets ORDER BY id")
        ]

    def vouchers(self) -> list[tuple[int, int]]:
        """Return the vouchers: customer id and cents."""
        return [
            (customer, cents) for customer, cents in self._rows("SELECT customer_id, cents FROM vouchers ORDER BY id")
        ]

    def summary(self) -> str:
        """Return what changed in the database since it was created, on one line."""
        counts = [_count(len(self.refunds()), "refund"), _count(len(self.tickets()), "ticket")]
        vouchers = [f" over {cents / 100:.2f}" for _, cents in self.vouchers()]
        return ", ".join([*counts, f"{_count(len(vouchers), 'voucher')}{' and'.join(vouchers)}"])

    def _rows(self, query: str, *values: object) -> Sequence[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, values).fetchall()

    def _update(self, statement: str, *values: object) -> bool:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).rowcount > 0

    def _insert(self, statement: str, *values: object) -> int:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            return connection.execute(statement, values).lastrowid or 0


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
