"""The options that choose how a model is called: the driver, its mode, and streaming."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click
from attrs import frozen

from agentloop.cli.configuration import configured_option
from agentloop.cli.errors import InvalidUsage
from agentloop.contracts.can_infer import CanInfer
from agentloop.drivers.inferring_driver import InferringDriver
from agentloop.drivers.react import ReActDriver
from agentloop.drivers.tool_calling import ToolCallingDriver
from agentloop.inference.model_rows import CapabilityRow
from agentloop.loop.agent_file import DRIVER_MODES

MODES: Mapping[str, Sequence[str]] = DRIVER_MODES
"""The modes of each driver."""
_ALL_MODES = tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes))


@frozen
class DriverOptions:
    """The driver that a command line chooses.

    Attributes:
        name: `tools` or `react`.
        mode: how the model is offered tools and writes its calls.
        streaming: whether responses are streamed.

    Raises:
        InvalidUsage: the driver has no such mode.
    """

    name: str = "tools"
    mode: str = "auto"
    streaming: bool = False

    def __attrs_post_init__(self) -> None:
        """Reject a mode of another driver."""
        modes = MODES[self.name]
        if self.mode not in modes:
            others = [f"--driver {name}" for name, modes in MODES.items() if self.mode in modes]
            raise InvalidUsage(
                f"--driver {self.name} has no mode {self.mode!r}, only {', '.join(modes)}; {self.mode!r} is a mode of "
                f"{' and '.join(others)}"
            )

    def build(self, inference: CanInfer, capabilities: Sequence[CapabilityRow] = ()) -> InferringDriver:
        """Build the driver.

        Args:
            inference: the model.
            capabilities: capability rows that precede the published ones.
        """
        if self.name == "react":
            return ReActDriver(inference, streaming=self.streaming, output=self.mode, models=capabilities)  # type: ignore[arg-type]  # checked against MODES
        return ToolCallingDriver(inference, streaming=self.streaming, mode=self.mode, models=capabilities)  # type: ignore[arg-type]  # checked against MODES


def driver_options(command: Callable[..., None], *, streams: bool = False) -> Callable[..., None]:
    """Add the options `--driver`, `--mode` and `--stream` to a command, which receives them as its argument `driver`.

    Args:
        command: the command.
        streams: whether the command always streams, so that it has no option `--stream`.
    """

    @wraps(command)
    def with_driver(*arguments: Any, driver_name: str, mode: str, stream: bool = False, **options: Any) -> None:
        command(*arguments, driver=DriverOptions(driver_name, mode, stream), **options)

    modes = " ".join(f"With --driver {name}: {', '.join(modes)}." for name, modes in MODES.items())
    # Decorators apply from the bottom up: the last option here is the first one in the help.
    stream = configured_option(
        "--stream/--no-stream", default=False, help="Show the model's text while it is generated."
    )
    for option in (
        *([] if streams else [stream]),
        click.option(
            "--mode",
            type=click.Choice(_ALL_MODES),
            default="auto",
            show_default=True,
            help=f"How the model is offered tools and writes its calls; auto picks what the model supports. {modes}",
        ),
        click.option(
            "--driver",
            "driver_name",
            type=click.Choice(list(MODES)),
            default="tools",
            show_default=True,
            help="tools: the model calls tools until it answers. react: the model writes a thought before each action.",
        ),
    ):
        option(with_driver)
    return with_driver
