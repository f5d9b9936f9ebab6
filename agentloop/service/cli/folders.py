"""The folders of a user: the configuration, and what the command line keeps between runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path


def config_folder(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder of the user's configuration; it may not exist.

    Args:
        environment: the environment variables; those of the process by default.
        platform: the platform, as `sys.platform` names it.
    """
    return _user_folder(
        "XDG_CONFIG_HOME", "APPDATA", ".config", os.environ if environment is None else environment, platform
    )


def state_folder(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """Return the folder of what the command line keeps between runs, such as the history of the chat; it may not exist.

    Args:
        environment: the environment variables; those of the process by default.
        platform: the platform, as `sys.platform` names it.
    """
    variables = os.environ if environment is None else environment
    return _user_folder("XDG_STATE_HOME", "LOCALAPPDATA", ".local/state", variables, platform)


def _user_folder(xdg: str, windows: str, unix: str, variables: Mapping[str, str], platform: str) -> Path:
    # A relative path is invalid by the XDG specification, and ignored.
    named = Path(variables.get(xdg, ""))
    if named.is_absolute():
        return named / "agentloop"
    if platform == "win32" and variables.get(windows):
        return Path(variables[windows]) / "agentloop"
    home = Path(variables.get("HOME") or Path.home())
    return home / ("Library/Application Support" if platform == "darwin" else unix) / "agentloop"


def config_file() -> Path:
    """Return the path of the configuration file; it may not exist."""
    return config_folder() / "config.toml"
