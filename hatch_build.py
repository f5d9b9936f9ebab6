"""A hook of the build: the distributions carry the page of the trace viewer as it is in `viewer/src`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PAGE = "agentloop/service/trace/viewer.html"
INPUTS = ["build.mjs", "package-lock.json", "package.json", "tsconfig.json"]


def fingerprint(viewer: Path) -> str:
    """Return the SHA-256 of everything that the page is built of, which `viewer/build.mjs` writes into it.

    Args:
        viewer: the folder `viewer` of a clone.
    """
    digest = hashlib.sha256()
    for name in sorted([*INPUTS, *(f"src/{path.name}" for path in (viewer / "src").iterdir())]):
        digest.update(name.encode() + b"\0" + (viewer / name).read_bytes() + b"\0")
    return digest.hexdigest()


def is_current(root: Path) -> bool:
    """Return whether the page of a clone is the one that its sources make."""
    page = root / PAGE
    return page.exists() and fingerprint(root / "viewer") in page.read_text(encoding="utf-8")


class ViewerHook(BuildHookInterface[Any]):
    """Builds the page again where its sources have changed, with npm; otherwise takes the file that is there.

    The page stands in git and in the source distribution, so that a build needs npm only after a change of `viewer/src`.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Look at the page before the files of a distribution are collected.

        Args:
            version: the kind of the distribution; an editable one takes the page of the clone as it is.
            build_data: not used.

        Raises:
            RuntimeError: the page belongs to other sources, and there is no npm to build it.
        """
        del build_data
        root = Path(self.root)
        if version == "editable" or not (root / "viewer" / "src").is_dir() or is_current(root):
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(
                f"{PAGE} is not the page that viewer/src makes, and building it needs npm: install node and npm, or undo the "
                "change of viewer/src"
            )
        for arguments in (["ci", "--no-audit", "--no-fund"], ["run", "build"]):
            subprocess.run([npm, "--prefix", str(root / "viewer"), *arguments], check=True)  # noqa: S603  # the folder is part of the clone
