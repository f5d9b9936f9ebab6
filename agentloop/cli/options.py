"""In which manner a model is asked: the driver, its mode, and whether its answers are shown while they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click
from attrs import frozen

from agentloop.cli.errors import BadUsage
from agentloop.contracts.can_infer import CanInfer
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.react import ReActDriver
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.inference.model_rows import CapabilityRow

MODES: Mapping[str, Sequence[str]] = {
    "tools": ("auto", "native", "structured", "validated", "parsed"),
    "react": ("auto", "json", "text"),
}
"""The modes of each driver."""
_ALL_MODES = tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes))


@frozen
class Manner:
    """A driver by name, with its mode.

    Attributes:
        driver_name: `tools` or `react`.
        mode: how the model is offered tools and writes its calls.
        streaming: whether answers are taken while they are written.

    Raises:
        BadUsage: when the driver has no such mode.
    """

    driver_name: str = "tools"
    mode: str = "auto"
    streaming: bool = False

    def __attrs_post_init__(self) -> None:
        """Refuse a mode of another driver."""
        known = MODES[self.driver_name]
        if self.mode not in known:
            others = [f"--driver {name}" for name, modes in MODES.items() if self.mode in modes]
            raise BadUsage(
                f"--driver {self.driver_name} has no mode {self.mode!r}, only {', '.join(known)}; {self.mode!r} is a mode of "
                f"{' and '.join(others)}"
            )

    def driver(self, inference: CanInfer, models: Sequence[CapabilityRow] = ()) -> InferringDriver:
        """Make the driver.

        Args:
            inference: the model.
            models: what models are able to do, before what is known of the published ones.
        """
        if self.driver_name == "react":
            return ReActDriver(inference, streaming=self.streaming, output=self.mode, models=models)  # type: ignore[arg-type]  # checked against MODES
        return ToolCallingDriver(inference, streaming=self.streaming, mode=self.mode, models=models)  # type: ignore[arg-type]  # checked against MODES


def manner_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options `--driver`, `--mode` and `--stream` to a command, which gets them as its argument `manner`."""

    @wraps(command)
    def with_manner(*given: Any, driver_name: str, mode: str, stream: bool, **options: Any) -> None:
        command(*given, manner=Manner(driver_name, mode, stream), **options)

    modes = " ".join(f"With --driver {name}: {', '.join(modes)}." for name, modes in MODES.items())
    for option in (
        click.option("--stream", is_flag=True, help="Show what the model writes while it writes it."),
        click.option(
            "--mode",
            type=click.Choice(_ALL_MODES),
            default="auto",
            show_default=True,
            help=f"How the model is offered tools and writes its calls; auto picks what suits the model. {modes}",
        ),
        click.option(
            "--driver",
            "driver_name",
            type=click.Choice(list(MODES)),
            default="tools",
            show_default=True,
            help="tools: the model calls tools until it answers. react: it writes a thought before each action.",
        ),
    ):
        option(with_manner)
    return with_manner
