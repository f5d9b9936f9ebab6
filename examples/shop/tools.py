"""The tools of the shop's support agent. Each execution supplies the shop as its dependencies."""

from __future__ import annotations

from shop.database import Customer, Order, Shop

from agentloop.contracts.tool import ToolContext
from agentloop.tools.decorator import tool
from agentloop.values.policies import CachePolicy, RetryPolicy


@tool(effect="pure")
def find_customer(name: str, context: ToolContext[Shop]) -> Customer:
    """Find a customer by name.

    Args:
        name: first and last name.
        context: supplied by the loop.
    """
    return context.dependencies.customer(name)


@tool(effect="pure", cache=CachePolicy(seconds=60), retry=RetryPolicy(initial_wait=0.05))
def track_order(number: int, context: ToolContext[Shop]) -> Order:
    """Report where an order is.

    Args:
        number: the order's number.
        context: supplied by the loop.
    """
    return context.dependencies.track(number)


@tool(effect="pure")
def list_orders(customer_id: int, context: ToolContext[Shop]) -> list[Order]:
    """List all orders of a customer.

    Args:
        customer_id: the customer's id.
        context: supplied by the loop.
    """
    return context.dependencies.orders_of(customer_id)


@tool
def refund(order_number: int, cents: int, context: ToolContext[Shop]) -> str:
    """Pay money back for an order.

    Args:
        order_number: the order's number.
        cents: the amount, in cents.
        context: supplied by the loop.
    """
    return f"refund {context.dependencies.refund(order_number, cents)} is booked"


@tool
def open_ticket(customer_id: int, subject: str, context: ToolContext[Shop]) -> str:
    """Open a ticket for a colleague when something needs a person.

    Args:
        customer_id: the customer concerned.
        subject: what the colleague has to decide or do.
        context: supplied by the loop.
    """
    return f"ticket {context.dependencies.open_ticket(customer_id, subject)} is open"


@tool
def give_voucher(customer_id: int, cents: int, context: ToolContext[Shop]) -> str:
    """Give a customer a voucher as compensation.

    Args:
        customer_id: the customer's id.
        cents: its value, in cents.
        context: supplied by the loop.
    """
    number = context.dependencies.give_voucher(customer_id, cents)
    return f"voucher {number} over {cents / 100:.2f} is yours"


TOOLS = (find_customer, track_order, list_orders, refund, open_ticket, give_voucher)
