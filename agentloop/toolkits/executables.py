"""Programs of the machine, looked up by their names."""

from __future__ import annotations

import os
import shutil


def find_executable(name: str, path: str = "") -> str | None:
    """Return the path of a program, or None without one.

    A program that has only a name is looked up in the folders of PATH. Relative and empty entries of PATH are skipped: they lead
    to the current folder, and a file there may be anybody's.

    Args:
        name: the name, or a path, which is returned as it is.
        path: the folders in which to look, as in PATH; those of PATH by default.
    """
    if os.path.dirname(name):  # noqa: PTH120  # "./name" has one, and `Path` drops it
        return shutil.which(name)
    entries = (path or os.environ.get("PATH") or os.defpath).split(os.pathsep)
    found = shutil.which(name, path=os.pathsep.join(filter(os.path.isabs, entries)))
    # On Windows, the current folder can be searched first whatever the entries are.
    return found if found is not None and os.path.isabs(found) else None  # noqa: PTH117  # a text as above
