"""Names: what an artifact may be called. A name is also a file's, a URL's and a person's word.

So it never leaves a folder when it is used as a path, on any system, and never looks like the name
of another artifact of its kind. How a name looks is its skeleton (Unicode TR 39, section 4): the
compatibility form (NFKC) without case, each character replaced by the simplest that looks the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches
from functools import lru_cache

from instar_core.base import short
from instar_core.errors import InvalidContent

__all__ = ["MAX_NAME", "check_kind", "check_name", "did_you_mean", "skeleton"]

MAX_NAME = 255
_KIND = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DRIVE = re.compile(r"[A-Za-z]:")
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$", "clock$"}
    | {f"{port}{digit}" for port in ("com", "lpt") for digit in range(10)}
)
# Characters that show nothing and are no spaces by their category: fillers, the braille blank.
_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0\u034f")
_WORDS_OF_CATEGORY = {
    "Cc": "a control character",
    "Cf": "an invisible character",
    "Cn": "a character that Unicode does not define",
    "Co": "a character of private use",
    "Cs": "half a character (a lone surrogate)",
    "Zl": "white space",
    "Zp": "white space",
    "Zs": "white space",
}
_OF_ANY_SCRIPT = frozenset({"COMMON", "INHERITED", "Unknown"})
# Scripts that one language writes together (Unicode TR 39, "highly restrictive").
_TOGETHER = (
    frozenset({"LATIN", "HAN", "HIRAGANA", "KATAKANA"}),
    frozenset({"LATIN", "HAN", "BOPOMOFO"}),
    frozenset({"LATIN", "HAN", "HANGUL"}),
)
_ASCII_LOOKS = str.maketrans("01|", "oll")


def check_kind(kind: str) -> None:
    """Refuses what cannot be the name of a kind.

    Raises:
        InvalidContent: Unless it is a lower-case identifier of at most 64 characters.
    """
    if not _KIND.fullmatch(kind):
        raise InvalidContent(
            f"{short(kind, 80)!r} cannot be a kind.",
            remedy="Use 1 to 64 lower-case letters, digits and '_', beginning with a letter.",
        )


def check_name(kind: str, name: str) -> None:
    """Refuses what cannot be the name of an artifact.

    ``/`` is allowed once, and never in the name of an agent: it stands between an agent and its
    component.

    Raises:
        InvalidContent: Saying what in it is wrong and what is allowed.
    """
    check_kind(kind)
    if not 1 <= len(name) <= MAX_NAME:
        raise _refused(kind, name, f"it has {len(name)} characters, and 1 to {MAX_NAME} are needed")
    # What a name becomes under NFKC must be harmless too: systems and people fold it so.
    for form in dict.fromkeys((name, unicodedata.normalize("NFKC", name))):
        wrong = _wrong_in(form) or _wrong_as_path(kind, form)
        if wrong:
            raise _refused(kind, name, wrong)
    if not name.isascii():
        for part in unicodedata.normalize("NFKC", name).split("/"):
            scripts = _scripts(part)
            if len(scripts) > 1 and not any(scripts <= those for those in _TOGETHER):
                mixed = " and ".join(sorted(script.capitalize() for script in scripts))
                raise _refused(kind, name, f"it mixes {mixed} letters, some of which look alike")


def skeleton(name: str) -> str:
    """What a name looks like: equal for names that people would take for each other."""
    if name.isascii():
        return name.lower().translate(_ASCII_LOOKS)
    # A replaced character may fold once more; few names need a second pass, none many.
    look = _folded(name)
    for _ in range(8):
        again = _folded(look)
        if again == look:
            break
        look = again
    return look


def _folded(name: str) -> str:
    looks = _looks()
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())
    shown = "".join(character for character in plain if not _varies(character))
    return "".join(looks.get(character, character) for character in shown).translate(_ASCII_LOOKS)


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """A remedy that names what is there and nearest to a name that is not; empty if nothing is."""
    there = list(dict.fromkeys(known))
    folded = {each.casefold(): each for each in there}
    near = [folded[key] for key in get_close_matches(wanted.casefold(), folded, n=3, cutoff=0.5)]
    if near:
        return f"Did you mean {' or '.join(repr(each) for each in near)}?"
    if there:
        more = ", …" if len(there) > 5 else ""
        return f"There are: {', '.join(there[:5])}{more}."
    return ""


def _refused(kind: str, name: str, wrong: str) -> InvalidContent:
    return InvalidContent(
        f"{short(name, 80)!r} cannot be the name of a {kind}: {wrong}.",
        remedy=f"Use 1 to {MAX_NAME} letters, digits, '-', '_' and '.' of one script.",
    )


def _wrong_in(name: str) -> str:
    for character in name:
        category = unicodedata.category(character)
        # Tab and line breaks are control characters to Unicode and white space to people.
        words = "white space" if character.isspace() else _WORDS_OF_CATEGORY.get(category)
        if character in _BLANK:
            words = "a character that shows nothing"
        if words:
            return f"it holds {words} (U+{ord(character):04X})"
        if character in "@\\":
            return f"it holds {character!r}"
    return ""


def _wrong_as_path(kind: str, name: str) -> str:
    parts = name.split("/")
    if len(parts) > 1 and kind == "agent":
        return "'/' separates an agent from its component"
    if len(parts) > 2:
        return "'/' stands once at most, between an agent and its component"
    for part in parts:
        if not part:
            return "it begins or ends with '/'"
        if part.startswith((".", "~")):
            return f"{part!r} begins with {part[0]!r}"
        if part.endswith("."):
            return f"{part!r} ends with '.'"
        if _DRIVE.match(part):
            return f"{part!r} begins like a drive letter"
        # What follows a dot or a colon (an ending, a stream) does not make it another device.
        if re.split("[.:]", part)[0].casefold() in _DEVICES:
            return f"{part!r} is the name of a device on some systems"
    return ""


def _scripts(text: str) -> frozenset[str]:
    from confusable_homoglyphs.categories import unique_aliases

    return frozenset(unique_aliases(text)) - _OF_ANY_SCRIPT


def _varies(character: str) -> bool:
    """Whether a character only asks for another drawing of the one before it."""
    return "\ufe00" <= character <= "\ufe0f" or "\U000e0100" <= character <= "\U000e01ef"


@lru_cache(maxsize=1)
def _looks() -> dict[str, str]:
    """Character → the simplest one that looks the same, for characters beyond ASCII.

    The tables list, for a character that many look like, all of those. ASCII ones come first, so
    that they are what the others are replaced by; a character's own look comes before that of its
    capital.
    """
    from confusable_homoglyphs.confusables import confusables_data

    table: dict[str, list[str]] = {
        _bare(model): [_bare(each["c"]) for each in alike]
        for model, alike in confusables_data.items()
        if len(_bare(model)) == 1
    }
    models = sorted((each for each in table if each.isascii()), key=lambda c: (c.isupper(), c))
    others = sorted(
        (each for each in table if not each.isascii()), key=lambda c: (-len(table[c]), c)
    )
    # The Cyrillic palochka is drawn as 'l'; the tables call it 'i'.
    looks: dict[str, str] = {"\u04cf": "l"}
    for group, exact in ((models, True), (models, False), (others, True), (others, False)):
        for model in group:
            target = model.casefold()
            for each in table[model]:
                folded = unicodedata.normalize("NFKC", each).casefold()
                beyond = len(folded) == 1 and not folded.isascii() and folded != target
                if beyond and (folded == each) is exact and looks.get(target) != folded:
                    looks.setdefault(folded, target)
    return {each: _end(looks, each) for each in looks}


def _end(looks: dict[str, str], start: str) -> str:
    """The last of a chain of looks; the smallest of a ring."""
    seen = [start]
    while (following := looks.get(seen[-1])) is not None:
        if following in seen:
            return min(seen[seen.index(following) :])
        seen.append(following)
    return seen[-1]


def _bare(text: str) -> str:
    """A character of the tables without the marks for writing direction around it."""
    return text.replace("\u200e", "")
