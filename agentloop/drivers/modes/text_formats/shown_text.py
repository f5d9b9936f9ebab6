"""The text around calls and thoughts, put together while it arrives."""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"\w")


class ShownText:
    """Takes a text's parts in order and keeps what is for the reader.

    Where something was cut out, the white space and the wrapping tags next to it go with it, and what stood around it stays
    apart by the white space before the cut, or else by that behind it. A text without cuts stays as it is.

    Attributes:
        words: a number that grows with each ordinary part that has a letter or a digit in it.
    """

    def __init__(self) -> None:
        self.words: int = 0
        self._kept: list[str] = []
        self._taken = 0
        self._pending: list[
            tuple[str, bool]
        ] = []  # white space, and wrapping tags (True), of which nothing is known yet
        self._behind_cut = False
        self._gap = ""

    @property
    def text(self) -> str:
        """All that is kept so far."""
        return "".join(self._kept)

    def take(self) -> str:
        """Return what was kept since this was last asked."""
        kept = self._kept[self._taken :]
        self._taken = len(self._kept)
        return "".join(kept)

    def plain(self, part: str) -> None:
        """Add ordinary text."""
        bare = part.lstrip()
        if len(bare) < len(part):
            self._pending.append((part[: len(part) - len(bare)], False))
        if not bare:
            return
        self._keep_pending()
        self.words += _WORD.search(bare) is not None
        content = bare.rstrip()
        self._kept.append(content)
        if len(content) < len(bare):
            self._pending.append((bare[len(content) :], False))

    def wrapper(self, part: str) -> None:
        """Add a tag that only serves calls: it is dropped if it turns out to stand next to one."""
        self._pending.append((part, True))

    def cut(self) -> None:
        """Leave something out."""
        if not self._behind_cut or not self._gap:
            self._gap = self._leading_space()
        self._pending.clear()
        self._behind_cut = True

    def forget(self) -> None:
        """Drop all that came so far: it was none of the answer."""
        self._kept.clear()
        self._pending.clear()
        self._taken, self._gap, self._behind_cut = 0, "", True

    def end(self) -> None:
        """Say that nothing more will come."""
        if not self._behind_cut:
            self._keep_pending()

    def _leading_space(self) -> str:
        space: list[str] = []
        for part, is_wrapper in self._pending:
            if is_wrapper:
                break
            space.append(part)
        return "".join(space)

    def _keep_pending(self) -> None:
        if self._behind_cut:
            space = self._gap or "".join(part for part, is_wrapper in self._pending if not is_wrapper)
            self._kept += [space] if self._kept else []
        else:
            self._kept += [part for part, _ in self._pending]
        self._pending.clear()
        self._behind_cut, self._gap = False, ""
