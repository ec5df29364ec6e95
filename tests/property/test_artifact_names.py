"""Names: whatever is accepted stays inside the folder that it is joined to, on every system."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath

from hypothesis import example, given, settings
from hypothesis import strategies as st

from instar.store.names import check_name, skeleton
from instar_core.errors import InvalidContent

# Characters that paths are made of come up often; all others too.
_ODD = st.sampled_from(["/", "\\", ".", "..", ":", "C:", "~", "con", "NUL", "．", "／", "⁄", "@"])
_NAMES = st.lists(st.one_of(_ODD, st.text(max_size=4)), min_size=1, max_size=6).map("".join)


def _accepted(name: str, kind: str = "skill") -> bool:
    try:
        check_name(kind, name)
    except InvalidContent:
        return False
    return True


@given(_NAMES)
@settings(max_examples=1000)
@example("../etc/passwd")
@example("a/../../b")
@example("C:windows")
@example("con:")
@example("nul:x")
@example("a/C:b")
@example("．．／x")
@example("℀")  # NFKC makes "a/c" of it
@example("a\\..\\b")
@example("\\\\server\\share")
def test_no_accepted_name_leaves_a_folder(name: str) -> None:
    if not _accepted(name):
        return
    for form in (name, unicodedata.normalize("NFKC", name)):
        posix = PurePosixPath("/srv/skills") / form
        assert posix.parts[:3] == ("/", "srv", "skills")
        assert len(posix.parts) > 3 and not set(posix.parts[3:]) & {".", ".."}
        windows = PureWindowsPath("C:/skills") / form
        assert windows.parts[:2] == ("C:\\", "skills") and windows.drive == "C:"
        assert len(windows.parts) == len(posix.parts) - 1
        assert not PureWindowsPath(form).is_reserved()
        # No file of a name's folder is hidden, and none belongs to a version control system.
        assert not any(
            part.startswith((".", "~")) or part.endswith(".") for part in posix.parts[3:]
        )


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=40))
def test_plain_names_are_accepted(name: str) -> None:
    if name.split(".")[0] not in {"con", "prn", "aux", "nul"} and name[:3] not in {"com", "lpt"}:
        check_name("prompt", name)


@given(_NAMES)
def test_a_look_is_stable_and_blind_to_case_and_width(name: str) -> None:
    look = skeleton(name)
    assert skeleton(look) == look
    assert skeleton(unicodedata.normalize("NFKC", name)) == look
    if name.isascii():
        assert skeleton(name.upper()) == look
