"""Twenty small tasks with plain functions as tools: what is asked, in three wordings, and what counts as solved. No library is known here."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, Literal

from attrs import field, frozen

INSTRUCTIONS = (
    "You are a helpful assistant. Use the tools when a question needs them. "
    "When you know what was asked for, answer briefly."
)

# --- tools ----------------------------------------------------------------------------------------------------------


def get_temperature(city: str) -> str:
    """Get the current temperature of a city.

    Args:
        city: The name of the city.
    """
    known = {"lisbon": 24, "oslo": -7, "cairo": 33, "quito": 18}
    if (degrees := known.get(city.strip().lower())) is None:
        raise ValueError(f"the city {city!r} is unknown; known are Lisbon, Oslo, Cairo and Quito")
    return f"{city}: {degrees} degrees Celsius"


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def find_phone_number(name: str) -> str:
    """Find the phone number of a person.

    Args:
        name: The name of the person.
    """
    if name.strip().lower() != "maria":
        raise ValueError(f"there is no number of {name!r}")
    return "555-0142"


def find_email_address(name: str) -> str:
    """Find the email address of a person.

    Args:
        name: The name of the person.
    """
    if name.strip().lower() != "maria":
        raise ValueError(f"there is no address of {name!r}")
    return "maria@example.com"


def send_email(to: str, text: str) -> str:
    """Send an email.

    Args:
        to: The email address of the receiver.
        text: The text of the email.
    """
    return f"sent {len(text)} characters to {to} as message M-318"


def look_up_order(order_id: str) -> str:
    """Look up an order.

    Args:
        order_id: The id of the order, such as B12.
    """
    if order_id.strip().upper() != "K77":
        raise ValueError(f"there is no order {order_id!r}")
    return json.dumps({"order": "K77", "state": "delayed", "city": "Cairo"})


def convert_distance(value: float, direction: Literal["km_to_miles", "miles_to_km"]) -> float:
    """Convert a distance.

    Args:
        value: The distance.
        direction: From which unit to which one.
    """
    return round(value * (0.621371 if direction == "km_to_miles" else 1.609344), 2)


def book_room(room: int, hour: int) -> str:
    """Book a meeting room for today.

    Args:
        room: The number of the room.
        hour: The hour at which the meeting begins, from 0 to 23.
    """
    return f"room {room} is booked at {hour}:00, confirmation QX{room}{hour}"


def read_document(name: str) -> str:
    """Read a document.

    Args:
        name: The name of the document.
    """
    lines = [f"Item {number}: the matter was discussed and put off." for number in range(1, 41)]
    lines[29] = "Item 30: the password of the archive is now HERON-58."
    return f"{name}\n" + "\n".join(lines)


def list_prices() -> str:
    """List the prices of all things in the shop."""
    lines = [f"box {number}: {number % 9 + 2} euros" for number in range(1, 41)]
    return "\n".join([*lines[:25], "kettle: 149 euros", *lines[25:]])


def get_exchange_rate(currency: str) -> str:
    """Get how much of a currency one euro is.

    Args:
        currency: The currency.
    """
    rates = {"USD": "1.08", "JPY": "163.4"}
    if (rate := rates.get(currency.strip())) is None:
        raise ValueError(f"{currency!r} is not a code of a currency; known codes are USD (dollar) and JPY (yen)")
    return f"1 EUR = {rate} {currency.strip()}"


EFFECTS = frozenset({"send_email", "book_room"})
"""The tools that do something; all others only look or compute."""

_COMMUTATIVE = frozenset({"add", "multiply"})


# --- what is asked, and what counts ---------------------------------------------------------------------------------


@frozen
class Made:
    """A call that ran.

    Attributes:
        tool: the name of the tool.
        arguments: the arguments that it got, also those of calls that failed.
    """

    tool: str
    arguments: Mapping[str, Any]


@frozen
class Need:
    """A call that a task needs; further arguments may have any value.

    Attributes:
        tool: the name of the tool.
        arguments: arguments that the call must have, compared without case and as numbers where they are numbers.
    """

    tool: str
    arguments: Mapping[str, Any] = field(factory=dict)

    def is_met_by(self, call: Made) -> bool:
        """Return whether a call is the one that is needed."""
        if call.tool != self.tool:
            return False
        wanted = [_plain(value) for value in self.arguments.values()]
        given = [_plain(call.arguments.get(name)) for name in self.arguments]
        if self.tool in _COMMUTATIVE:
            return sorted(map(str, wanted)) == sorted(map(str, given))
        return wanted == given


@frozen(kw_only=True)
class Task:
    """A task.

    Attributes:
        name: its name.
        kind: what it tries: a single call, a sequence, calls side by side, a typed answer, no call, a long result, or an error.
        wordings: the same question in three wordings.
        tools: the tools on offer.
        needs: the calls that must be made. A task that needs none must be solved without any.
        says: texts that the answer must contain, numbers as whole numbers.
        output_type: the type of the answer; None for text.
        fields: what a typed answer must be.
    """

    name: str
    kind: str
    wordings: tuple[str, str, str]
    tools: tuple[Callable[..., Any], ...] = ()
    needs: tuple[Need, ...] = ()
    says: tuple[str, ...] = ()
    output_type: type | None = None
    fields: Mapping[str, Any] = field(factory=dict)

    def has_calls(self, made: Sequence[Made]) -> bool:
        """Return whether the needed calls were made, and no effect that was not asked for, or twice."""
        if not self.needs:
            return not made
        effects = sum(call.tool in EFFECTS for call in made)
        wanted_effects = sum(need.tool in EFFECTS for need in self.needs)
        return effects == wanted_effects and all(any(map(need.is_met_by, made)) for need in self.needs)

    def has_answer(self, answer: object) -> bool:
        """Return whether an answer is right."""
        if self.output_type is None:
            text = str(answer or "")
            return bool(text.strip()) and all(contains(text, each) for each in self.says)
        given = asdict(answer) if is_dataclass(answer) and not isinstance(answer, type) else answer
        if not isinstance(given, Mapping):
            return False
        return all(_plain(given.get(name)) == _plain(value) for name, value in self.fields.items())


def contains(text: str, part: str) -> bool:
    """Return whether a text contains a part as a whole number, or as whole words."""
    before = r"(?<![\w.,-])" if part[0].isdigit() else r"(?<!\w)"
    after = r"(?![\d]|[.,]\d)" if part[-1].isdigit() else r"(?!\w)"
    return re.search(f"{before}{re.escape(part)}{after}", text, re.IGNORECASE) is not None


def _plain(value: object) -> object:
    """Return a value as it is compared: numbers as numbers, also in a text, and texts without case."""
    if isinstance(value, bool):
        return value
    try:
        return float(str(value))
    except ValueError:
        return str(value).strip().lower()


def recorded(function: Callable[..., Any], made: list[Made]) -> Callable[..., Any]:
    """Return a function of the same signature that notes each of its calls."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        made.append(Made(function.__name__, dict(signature.bind(*args, **kwargs).arguments)))
        return function(*args, **kwargs)

    return run


# --- the tasks ------------------------------------------------------------------------------------------------------


@dataclass
class Person:
    """A person."""

    name: str
    age: int


@dataclass
class Review:
    """What a review says."""

    mood: Literal["positive", "negative"]


@dataclass
class CityTemperature:
    """The temperature of a city."""

    city: str
    degrees: int


TASKS: tuple[Task, ...] = (
    Task(
        name="temperature",
        kind="single",
        wordings=(
            "What is the temperature in Lisbon?",
            "Tell me how warm it is in Lisbon now.",
            "I am about to leave for Lisbon. How many degrees does it have there?",
        ),
        tools=(get_temperature,),
        needs=(Need("get_temperature", {"city": "Lisbon"}),),
        says=("24",),
    ),
    Task(
        name="sum",
        kind="single",
        wordings=(
            "Use the tool to add 38 and 45. What is the sum?",
            "Compute 38 + 45 with the tool.",
            "I have 38 apples and get another 45. How many are there? Please use the tool.",
        ),
        tools=(add,),
        needs=(Need("add", {"a": 38, "b": 45}),),
        says=("83",),
    ),
    Task(
        name="product",
        kind="single",
        wordings=(
            "Use a tool to compute 14 times 23.",
            "What is the product of 14 and 23? Use a tool.",
            "There are 14 shelves with 23 books each. How many books are there? Please use a tool.",
        ),
        tools=(add, multiply),
        needs=(Need("multiply", {"a": 14, "b": 23}),),
        says=("322",),
    ),
    Task(
        name="phone",
        kind="single",
        wordings=(
            "What is the phone number of Maria?",
            "Give me Maria's phone number.",
            "I want to call Maria. Which number do I dial?",
        ),
        tools=(get_temperature, find_email_address, find_phone_number, look_up_order),
        needs=(Need("find_phone_number", {"name": "Maria"}),),
        says=("555-0142",),
    ),
    Task(
        name="order",
        kind="single",
        wordings=(
            "What is the state of order K77?",
            "Look up order K77 and tell me its state.",
            "I am still waiting for my order, its id is K77. What is the matter with it?",
        ),
        tools=(look_up_order,),
        needs=(Need("look_up_order", {"order_id": "K77"}),),
        says=("delayed",),
    ),
    Task(
        name="distance",
        kind="single",
        wordings=(
            "How many miles are 26 km? Use the tool.",
            "Convert 26 kilometers to miles with the tool.",
            "My run today was 26 kilometers long. Please use the tool to tell me the miles.",
        ),
        tools=(convert_distance,),
        needs=(Need("convert_distance", {"value": 26, "direction": "km_to_miles"}),),
        says=("16.16",),
    ),
    Task(
        name="booking",
        kind="single",
        wordings=(
            "Book room 4 at 15 o'clock. What is the confirmation?",
            "Please book meeting room 4 for 15:00 and tell me the confirmation.",
            "We meet today at 15:00 and need room 4. Book it, and give me the confirmation.",
        ),
        tools=(book_room,),
        needs=(Need("book_room", {"room": 4, "hour": 15}),),
        says=("QX415",),
    ),
    Task(
        name="sum and product",
        kind="sequence",
        wordings=(
            "First add 6 and 8 with a tool. Then multiply the sum by 7 with a tool. What is the result?",
            "Use tools to compute (6 + 8) times 7.",
            "Two groups of 6 and 8 people come, and each person pays 7 euros. Use tools: add, then multiply. How much is it?",
        ),
        tools=(add, multiply),
        needs=(Need("add", {"a": 6, "b": 8}), Need("multiply", {"a": 14, "b": 7})),
        says=("98",),
    ),
    Task(
        name="mail",
        kind="sequence",
        wordings=(
            "Find the email address of Maria and send her an email with the text Hello. What is the id of the message?",
            "Send an email with the text Hello to Maria; find her address first. Tell me the id of the message.",
            "Maria should get an email from me that says Hello. Please find her address, send it, and give me the id of the message.",
        ),
        tools=(find_email_address, send_email),
        needs=(
            Need("find_email_address", {"name": "Maria"}),
            Need("send_email", {"to": "maria@example.com", "text": "Hello"}),
        ),
        says=("M-318",),
    ),
    Task(
        name="order and temperature",
        kind="sequence",
        wordings=(
            "Look up order K77. What is the temperature in the city of the order?",
            "In which city is order K77, and how warm is it there?",
            "My order K77 is in some city. Find out which one, and how many degrees it has there.",
        ),
        tools=(look_up_order, get_temperature),
        needs=(Need("look_up_order", {"order_id": "K77"}), Need("get_temperature", {"city": "Cairo"})),
        says=("33",),
    ),
    Task(
        name="two cities",
        kind="parallel",
        wordings=(
            "What is the temperature in Oslo and in Quito?",
            "Compare the temperatures of Oslo and Quito; name both.",
            "One friend lives in Oslo, another one in Quito. How many degrees does each of them have?",
        ),
        tools=(get_temperature,),
        needs=(Need("get_temperature", {"city": "Oslo"}), Need("get_temperature", {"city": "Quito"})),
        says=("-7", "18"),
    ),
    Task(
        name="two sums",
        kind="parallel",
        wordings=(
            "Use the tool to compute 12 + 19 and also 50 + 26.",
            "What are 12 plus 19, and 50 plus 26? Use the tool for both.",
            "One basket has 12 and 19 eggs, the other one 50 and 26. Use the tool for the sum of each basket.",
        ),
        tools=(add,),
        needs=(Need("add", {"a": 12, "b": 19}), Need("add", {"a": 50, "b": 26})),
        says=("31", "76"),
    ),
    Task(
        name="person",
        kind="typed",
        wordings=(
            "Extract the person: My name is Tom and I am 41 years old.",
            "Who is this? 'Hello, Tom here, I turned 41 last week.'",
            "From the text 'Tom (41) won the race', give me the person.",
        ),
        output_type=Person,
        fields={"name": "Tom", "age": 41},
    ),
    Task(
        name="review",
        kind="typed",
        wordings=(
            "What is the mood of this review? 'It broke on the first day, I want my money back.'",
            "Judge the mood: 'A terrible film, I left after ten minutes.'",
            "A guest wrote: 'The room was dirty and loud, never again.' Is that positive or negative?",
        ),
        output_type=Review,
        fields={"mood": "negative"},
    ),
    Task(
        name="typed temperature",
        kind="typed",
        wordings=(
            "What is the temperature in Quito?",
            "Tell me how warm it is in Quito now.",
            "I am about to leave for Quito. How many degrees does it have there?",
        ),
        tools=(get_temperature,),
        needs=(Need("get_temperature", {"city": "Quito"}),),
        output_type=CityTemperature,
        fields={"city": "Quito", "degrees": 18},
    ),
    Task(
        name="greeting",
        kind="no call",
        wordings=("Hello! How are you?", "Good morning!", "Hi there, nice to meet you."),
        tools=(get_temperature, add),
    ),
    Task(
        name="capital",
        kind="no call",
        wordings=(
            "What is the capital of Italy? Answer without a tool.",
            "Name the capital of Italy. You need no tool for it.",
            "My daughter asks for the capital of Italy. Answer without a tool, please.",
        ),
        tools=(add, send_email),
        says=("Rome",),
    ),
    Task(
        name="document",
        kind="long result",
        wordings=(
            "Read the document 'minutes'. What is the password of the archive?",
            "The document 'minutes' has the password of the archive. Tell me the password.",
            "I forgot the password of the archive. It must be in the document 'minutes'.",
        ),
        tools=(read_document,),
        needs=(Need("read_document", {"name": "minutes"}),),
        says=("HERON-58",),
    ),
    Task(
        name="price",
        kind="long result",
        wordings=(
            "What does the kettle cost? List the prices.",
            "Look at the list of prices and tell me the price of the kettle.",
            "I want to buy a kettle in the shop. How much money do I need?",
        ),
        tools=(list_prices,),
        needs=(Need("list_prices"),),
        says=("149",),
    ),
    Task(
        name="exchange rate",
        kind="error",
        wordings=(
            "How many yen is one euro?",
            "Get the exchange rate of the euro to the yen.",
            "I fly to Tokyo with my euros. What do I get in yen for each of them?",
        ),
        tools=(get_exchange_rate,),
        needs=(Need("get_exchange_rate", {"currency": "JPY"}),),
        says=("163.4",),
    ),
)
