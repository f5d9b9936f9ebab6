"""Text in which a person sees every character, and can tell it from any other text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import cached_property, lru_cache
from typing import cast


class _LatePattern:
    """A pattern that is compiled when it is first used: those with many ranges take half of the time to load this module."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self._text)


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
# Passed without a closer look: printable ASCII, and letters of East Asian scripts that look like no others in such a text.
_VISIBLE = _LatePattern(r"[ !#-\[\]-~\u3042-\u3096\u4e00-\u9fff\uac00-\ud7a3]+")
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_ALWAYS_VISIBLE = re.compile(r"[\n\t -~]*")
# Where a terminal wraps a line, a gap before a name could look like the next argument.
_WIDE_GAP = re.compile(r" {17,}| {2,}(?=[^ =][^=]{0,60} = )")
_WORD = re.compile(r"[^\W\d_]+")


def render_text(text: str) -> str:
    """Render a text as a JSON string in which every character is visible, and no two texts look alike.

    These are escaped: control and format characters, fillers, spaces other than the ASCII space, long runs of spaces, spaces that could indent another argument, accents
    that could be part of the letter before them, piles of accents, characters that have another standard form with the same look, digits of other
    scripts, signs that look like ASCII signs, letters of one script in words of another, words that consist of look-alikes of
    Latin letters, letters of scripts that are not in wide use, and right-to-left letters beside left-to-right ones.
    """
    return quote_text(text, is_alone=True)


def quote_text(text: str, *, is_alone: bool) -> str:
    """Return a text as a JSON string in which everything is visible.

    Args:
        text: the text.
        is_alone: whether it is the whole line; beside other text, right-to-left letters are escaped.
    """
    is_plain = text.isascii() or _VISIBLE.compiled.fullmatch(text)
    imitations = frozenset[int]() if is_plain else _imitations(text, is_alone=is_alone)
    return f'"{_escape_marked(text, imitations)}"'


def escape_invisible(text: str) -> str:
    """Escape every character of a text that cannot be seen; tabs, line feeds and backslashes stay as they are."""
    if _ALWAYS_VISIBLE.fullmatch(text):
        return text
    return text.translate(_VISIBLE_FORMS)


def escape_all(text: str) -> str:
    """Escape every character of a text that is not ASCII."""
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: _escape(found.group()), text)


def _escape_marked(text: str, imitations: frozenset[int]) -> str:
    if text.isascii():
        return _WIDE_GAP.sub(_escape_spaces, text.translate(_ASCII_FORMS))
    forms = [_FORMS[char] for char in text]
    for position in imitations:
        forms[position] = _escape(text[position])
    # In order: what stands before a mark may have been escaped.
    for position in [position for position, form in enumerate(forms) if form is None]:
        forms[position] = _form_at(text, position, forms)
    return _WIDE_GAP.sub(_escape_spaces, "".join(cast("list[str]", forms)))


def _escape_spaces(gap: re.Match[str]) -> str:
    return "\\u0020" * len(gap.group())


@lru_cache(maxsize=4096)
def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    code = ord(char)
    if code <= 0xFFFF:  # noqa: PLR2004  # the last code of one UTF-16 unit
        return f"\\u{code:04x}"
    # JSON escapes are UTF-16 units.
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


class _Forms(dict[str, str | None]):
    """Maps each character to itself or to its escape; to None where what stands before it decides. Filled as characters occur."""

    def __missing__(self, char: str) -> str | None:
        form = None if _depends_on_place(char) else _escape(char) if _is_escaped_anywhere(char) else char
        if len(self) < _MAX_KNOWN:
            self[char] = form
        return form


_MAX_KNOWN = 20_000  # far more characters than a text of any language has


_FORMS = _Forms()


def _is_escaped_anywhere(char: str) -> bool:
    """Return whether a character is invisible, or looks like another one wherever it stands."""
    if char.isascii():
        return char in _ESCAPES or _is_invisible(char)
    return _is_invisible(char) or _has_twin(char) or _looks_like_ascii(char) or not _is_in_wide_use(char)


_ASCII_FORMS = {ord(char): _escape(char) for char in map(chr, range(128)) if not char.isprintable() or char in _ESCAPES}


def _depends_on_place(char: str) -> bool:
    """Return whether what stands before a character decides how it is shown: marks, and letters that join the one before them."""
    if char.isascii() or _is_escaped_anywhere(char):
        return False
    return unicodedata.category(char).startswith("M") or any(_composes(before, char) for before in _JOINING)


_JOINING = "\u1100\uac00"  # a consonant and a syllable of Korean, which the letters after them become a part of
_MAX_MARKS = 5


def _form_at(text: str, position: int, forms: list[str | None]) -> str:
    """Return how a character is shown after what stands before it.

    A mark stays as it is where a text of its script has it: after a letter of the script that is shown itself, once, in the order of
    Unicode, and not above or below a pile of other marks.
    """
    char, before = text[position], text[position - 1 : position]
    if not before or forms[position - 1] != before or before == char or _composes(before, char):
        return _escape(char)
    if not unicodedata.category(char).startswith("M"):
        return char
    is_own = _script(char) == _script(before) != "COMBINING"
    return (
        char
        if is_own and not _is_misplaced(char, before) and _count_marks(text, position) < _MAX_MARKS
        else _escape(char)
    )


def _count_marks(text: str, end: int) -> int:
    """Return the number of marks that stand before a place, as far as it matters."""
    start = end
    while end - start < _MAX_MARKS and start > 0 and unicodedata.category(text[start - 1]).startswith("M"):
        start -= 1
    return end - start


_TONES = range(103, 123)  # the combining classes of the signs of Thai and Lao that stand above or below a vowel


def _is_misplaced(char: str, before: str) -> bool:
    """Return whether a mark looks like one in another order: beside one of its class, or a vowel of Thai or Lao after a tone."""
    kind, former = unicodedata.combining(char), unicodedata.combining(before)
    return kind == former != 0 or (kind == 0 and former in _TONES and unicodedata.category(char) == "Mn")


def _composes(before: str, char: str) -> bool:
    pair = before + char
    return unicodedata.normalize("NFC", pair) != pair


# Characters that show nothing although their category is that of a letter, a mark or a symbol, and those that Unicode
# reserves for such (DerivedCoreProperties.txt, Default_Ignorable_Code_Point; blanks from UnicodeData.txt).
_BLANK = _LatePattern(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U00013441\U00013442\U00016fe4\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})


@lru_cache(maxsize=4096)
def _is_invisible(char: str) -> bool:
    if char == " ":
        return False
    return unicodedata.category(char) in _INVISIBLE_CATEGORIES or _BLANK.compiled.match(char) is not None


class _VisibleForms(dict[int, int | str]):
    """Maps the code of each character to itself or to its escape, for `str.translate`; filled as characters occur."""

    def __missing__(self, code: int) -> int | str:
        char = chr(code)
        form = self[code] = code if char in "\n\t" or not _is_invisible(char) else _escape(char)
        return form


_VISIBLE_FORMS = _VisibleForms()


# The vowel am of Thai and Lao looks like these marks followed by aa; the marks alone are rare, so that they are escaped.
_PARTS_OF_LETTERS = frozenset("\u0e4d\u0ecd")
_LETTERS_WITH_PARTS = frozenset("\u0e33\u0eb3")


@lru_cache(maxsize=4096)
def _has_twin(char: str) -> bool:
    """Return whether another character or sequence has the same look by definition."""
    if unicodedata.normalize("NFC", char) != char:
        return True
    if char in _PARTS_OF_LETTERS:
        return True
    if char in _LETTERS_WITH_PARTS:
        return False
    # Ligatures, full-width and mathematical letters. Half-width ones are common and look different.
    is_letter = unicodedata.category(char) in {"Lu", "Ll", "Lt", "Lo", "Nd", "Nl"}
    has_other_form = is_letter and unicodedata.normalize("NFKC", char) != char
    return has_other_form and not unicodedata.name(char, "").startswith("HALFWIDTH")


# --- look-alikes ----------------------------------------------------------------------------------------------------

# Letters of alphabets in daily use that look like ASCII letters or digits (Unicode confusables.txt).
_LATIN_TWINS = frozenset(
    "АВЕЗІЈКМНОРСТУХЅаеорсухіјѕԁԛԝһӏѵгкҮүҺЬб"  # Cyrillic
    "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧοναιρυγσκ"  # Greek
    "օսոհզցյՍԼՏՕՈ"  # Armenian
)
# Scripts whose letters are written in one word with those of others.
_MIXED_SCRIPTS = frozenset(
    {"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "HANGUL", "BOPOMOFO", "HALFWIDTH", "IDEOGRAPHIC", "MODIFIER"}
)
# The recommended scripts of UAX #31, table 5. Others have many look-alikes, such as the Cherokee and the Lisu letters, and
# few readers.
# fmt: off
_SCRIPTS_IN_WIDE_USE = _MIXED_SCRIPTS | {
    "ARABIC", "ARMENIAN", "BENGALI", "CYRILLIC", "DEVANAGARI", "ETHIOPIC", "GEORGIAN", "GREEK", "GUJARATI",
    "GURMUKHI", "HEBREW", "KANNADA", "KHMER", "LAO", "LATIN", "MALAYALAM", "MYANMAR", "ORIYA", "SINHALA", "TAMIL",
    "TELUGU", "THAANA", "THAI", "TIBETAN",
}
# fmt: on
# Signs that look like ASCII signs, and phonetic and rare letters among which are copies of ASCII letters. Typographic quotes
# are left out: they can be told from ASCII ones.
_ASCII_TWINS = _LatePattern(
    "[\u0184\u0185\u01a6\u01a7\u01b7\u01bc-\u01c3\u021c\u0222\u0223\u0250-\u036f\u1d00-\u1dff\u1e9d\u1eff\ua700-\ua7ff"
    "\uab30-\uab6f\u00b8\u0589\u05be\u05c0\u05c3\u05f3\u05f4\u060d\u066a-\u066d\u06d4\u0903\u0a83\u097d\u0704-\u0706"
    "\u2010-\u2012\u2015-\u2017\u201a\u201b\u201f\u2024\u2032-\u2037\u2041\u2043\u2044\u204e\u2052\u2053\u205a\u2206\u220f"
    "\u2211-\u2212\u2215-\u2219\u2223\u2236\u223c\u22c5\u2500-\u2503\u2571-\u2573\u2758\u2768-\u2775\u2795\u2796\u27cb\u27cd"
    "\u29f5\u29f8\u29f9\u2c60-\u2c7f\u2cba\u2e40\u2e80-\u2fdf\u3003\u3033\u3035\u30a0\u31c0-\u31ef\ufd3e\ufd3f\ufe10-\ufe19"
    "\ufe30-\ufe6f\U0001f1e6-\U0001f1ff]"
)
# Signs that look like others beside some characters only: the dash that is wider than a hyphen, unless it stands between
# spaces, full-width signs beside ASCII, and letters of Japanese that are equal in two of its scripts.
_TWINS_BESIDE = _LatePattern(
    "(?<!\\s)\u2013|\u2013(?!\\s)"
    "|(?<=[!-~])[\uff01-\uff20\uff3b-\uff40\uff5b-\uff65]|[\uff01-\uff20\uff3b-\uff40\uff5b-\uff65](?=[!-~])"
    "|(?<![\u30a1-\u30ff])[\u30ab\u30cb\u30ed\u30a8\u30c8\u30bf\u30cf\u30aa](?![\u30a1-\u30ff])"
    "|(?<=[\u30a1-\u30ff])[\u4e00\u4e8c\u529b\u53e3\u5de5\u535c\u5915\u516b\u624d](?![\u4e00-\u9fff\u3041-\u3096])"
    "|[\u4e00\u4e8c\u529b\u53e3\u5de5\u535c\u5915\u516b\u624d](?=[\u30a1-\u30ff])(?<![\u4e00-\u9fff].)"
    "|[\u30d8-\u30da](?![\u30a1-\u30ff])|[\u3078-\u307a](?=[\u30a1-\u30ff])"
    "|(?<![\u3041-\u30ff])\u30fc"
)


@lru_cache(maxsize=4096)
def _looks_like_ascii(char: str) -> bool:
    """Return whether a character looks like an ASCII one: signs, letters among phonetic ones, and digits of other scripts."""
    return unicodedata.category(char) == "Nd" or _ASCII_TWINS.compiled.match(char) is not None


@lru_cache(maxsize=4096)
def _is_in_wide_use(char: str) -> bool:
    if unicodedata.category(char)[0] not in "LM":
        return True
    script = _script(char)
    return script in _SCRIPTS_IN_WIDE_USE or script == "COMBINING"


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    # Python has no table of scripts; the names of letters and marks begin with theirs.
    return unicodedata.name(char, "").partition(" ")[0]


def _imitations(text: str, *, is_alone: bool) -> frozenset[int]:
    """Return the positions of characters that look like, or are reordered among, others.

    Args:
        text: the text.
        is_alone: whether no other text of a person's language stands on the same line.
    """
    positions: set[int] = set()
    chars = set(text)
    # A text of one direction is not reordered.
    if any(map(_is_right_to_left, chars)) and not (is_alone and not any(map(_is_left_to_right, chars))):
        positions.update([position for position, char in enumerate(text) if _is_right_to_left(char)])
    positions.update([twin.start() for twin in _TWINS_BESIDE.compiled.finditer(text)])
    for start, word, foreign in _imitating_words(text):
        positions.update(
            [start + index for index, char in enumerate(word) if not char.isascii() and _script(char) in foreign]
        )
    return frozenset(positions)


def _imitating_words(text: str) -> Iterator[tuple[int, str, Collection[str]]]:
    """Yield the words that have letters of several scripts, or could be read as Latin, with their imitating scripts."""
    words = list(_WORD.finditer(text))
    # Words repeat, and a text of a megabyte may have half a million.
    kinds = {word: _kind_of(word) for word in {word.group() for word in words}}
    found = [kinds[word.group()][0] for word in words]
    genuine = [kinds[word.group()][1] for word in words]
    for index, (word, scripts) in enumerate(zip(words, found, strict=True)):
        if len(scripts) > 1:
            yield word.start(), word.group(), set(scripts) - {"LATIN"} if "LATIN" in scripts else scripts[1:]
        elif scripts and not genuine[index]:
            # Words such as the Cyrillic a are raw among words of their language.
            is_among = scripts in genuine[max(index - 1, 0) : index + 2] and not _is_joined(text, word)
            if not is_among:
                yield word.start(), word.group(), scripts


def _kind_of(word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the scripts of a word, and again if it is a word of one of them that could not be read as Latin; else none."""
    scripts = _scripts(word)
    return scripts, scripts if _is_genuine(word, scripts) else ()


def _is_genuine(word: str, scripts: tuple[str, ...]) -> bool:
    """Return whether a word has letters of one script, and one that looks like no Latin letter."""
    return len(scripts) == 1 and not _LATIN_TWINS.issuperset(_letters(word, scripts[0]))


_JOINED_BEFORE = re.compile(r"[A-Za-z0-9][^\w\s]*$")
_JOINED_AFTER = re.compile(r"[^\w\s]*[A-Za-z0-9]")
_MAX_JOINT = 8


def _is_joined(text: str, word: re.Match[str]) -> bool:
    """Return whether ASCII letters or digits are joined to a word without a space, as in an address."""
    before = text[max(word.start() - _MAX_JOINT, 0) : word.start()]
    return bool(_JOINED_BEFORE.search(before) or _JOINED_AFTER.match(text, word.end(), word.end() + _MAX_JOINT))


def _scripts(word: str) -> tuple[str, ...]:
    """Return the scripts of a word that are not written together with others, in the order of their first letters; none for ASCII."""
    if word.isascii():
        return ()
    return tuple([script for script in dict.fromkeys(map(_script, word)) if script not in _MIXED_SCRIPTS])


def _letters(word: str, script: str) -> set[str]:
    return {char for char in word if _script(char) == script}


def _is_right_to_left(char: str) -> bool:
    return not char.isascii() and unicodedata.bidirectional(char) in {"R", "AL"}


def _is_left_to_right(char: str) -> bool:
    return unicodedata.bidirectional(char) in {"L", "EN", "AN"}
