"""Redaction by value in every encoding, in every process's logs, at one price per line (S101)."""

from __future__ import annotations

import base64
import contextvars
import json
import logging
import secrets
import subprocess
import sys
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instar.redaction import (
    MASK,
    install_log_redaction,
    is_secret_variable,
    mask_known,
    redact,
    redact_text,
    register_secret,
    scope_redaction,
)
from instar.redaction import mask as masking
from instar.redaction.mask import redact_log

CANARY = 'cän/ary+7 &"9f8e=7d'
PLAIN = "canary-plain-0a1b2c3d4e"


@pytest.mark.parametrize("value", [CANARY, PLAIN])
def test_s101_a_known_value_is_found_in_the_usual_encodings(value: str) -> None:
    register_secret(value)
    data = value.encode()
    for form in (
        value,
        value[::-1],
        base64.b64encode(data).decode(),
        base64.urlsafe_b64encode(data).decode(),
        data.hex(),
        data.hex().upper(),
        quote(value),
        quote(value, safe=""),
        quote_plus(value),
        quote(value, safe="").lower() if value == PLAIN else quote(value, safe=""),
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        repr(value),
    ):
        shown = mask_known(f"before {form} after")
        assert MASK in shown, form
        assert shown.startswith("before ") and shown.endswith(" after")


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "Aladdin:"])
@pytest.mark.parametrize("after", ["", "x", "xy"])
def test_s101_base64_is_found_wherever_the_value_lies_in_it(before: str, after: str) -> None:
    register_secret(PLAIN)
    encoded = base64.b64encode(f"{before}{PLAIN}{after}".encode()).decode()
    assert MASK in mask_known(f"Basic {encoded}")


@given(st.text(min_size=0, max_size=200), st.text(min_size=6, max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_known_value_never_stays_in_a_text(around: str, value: str) -> None:
    if value in MASK:
        return
    register_secret(value)
    shown = mask_known(around + value + around)
    assert value not in shown.replace(MASK, "")


def test_overlapping_values_are_masked_as_one() -> None:
    for value in ("abcdefghij", "efghijklmn", "ijklmnopqr"):
        register_secret(f"ov-{value}")
    register_secret("over-lapping-1")
    register_secret("lapping-1-more")
    assert mask_known("x over-lapping-1-more y") == f"x {MASK} y"


def test_what_only_looks_secret_stays_where_content_must_stay() -> None:
    text = "set password: hunter22 in https://u:pw-pw-pw@h/ and sk-abcdefghijklmnopqrstuv"
    assert mask_known(text) == text
    assert "hunter22" not in redact_text(text)


def test_a_reference_is_no_secret() -> None:
    text = "--api-key=${secret:0192f0a0} and ${secret:desk.KEY}"
    assert redact_text(text) == text


def test_passwords_inside_addresses_of_the_environment_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("INSTAR_APP_DATABASE_URL", "postgresql://instar_app:pw-in-url-77@/instar")
    assert mask_known("it was pw-in-url-77") == f"it was {MASK}"


@pytest.mark.parametrize(
    "name", ["BOT_TOKEN", "DEPLOY_KEY", "DB_PWD", "SENTRY_DSN", "api-key", "GH_PAT", "DB_PASS"]
)
def test_variables_are_named_tersely(name: str) -> None:
    assert is_secret_variable(name)


@pytest.mark.parametrize(
    "name", ["PWD", "OLDPWD", "KEY_FILE", "TOKEN_PATH", "MAX_TOKENS", "KEYBOARD", "HOME", "AUTHOR"]
)
def test_harmless_variables_stay(name: str) -> None:
    assert not is_secret_variable(name)


def test_a_keys_path_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_KEY", "/etc/passwd")
    assert redact_text("see /etc/passwd") == "see /etc/passwd"


def test_keys_of_mappings_are_masked_too() -> None:
    register_secret(PLAIN)
    assert redact({PLAIN: 1}) == {MASK: 1}


def test_a_line_costs_the_same_whether_ten_or_a_thousand_secrets_are_known() -> None:
    """Counted in table look-ups, not in seconds: one per character, whatever is known."""
    few, many = (
        masking._Table(["abcdefgh"] * 10),
        masking._Table(secrets.token_urlsafe(24) for _ in range(20_000)),
    )
    looked: list[str] = []

    class Counting(dict[str, tuple[str, ...]]):
        def get(self, key: str, default: object = None) -> object:  # type: ignore[override]
            looked.append(key)
            return super().get(key)

    text = "an ordinary line of a log, with nothing to hide in it " * 4
    counts = []
    for table in (few, many):
        table.by_start = Counting(table.by_start)
        looked.clear()
        assert table.mask(text) == text
        counts.append(len(looked))
    assert counts[0] == counts[1] == len(text) - 5


# Logs

_SPEAKER = """
import logging, sys, threading
from instar.settings import prepare_process
from instar.redaction import register_secret
prepare_process()
logging.basicConfig(level=logging.INFO, format="%(message)s")
CANARY = "canary-log-5e4d3c2b1a"
register_secret(CANARY)
log = logging.getLogger(sys.argv[1])
# A handler and a formatter of somebody else's, added later.
other = logging.StreamHandler()
other.setFormatter(logging.Formatter("other %(message)s"))
log.addHandler(other)
log.setLevel(logging.INFO)
log.info("plain %s and %r", CANARY, {"k": CANARY})
log.info("wrong %d", CANARY)
try:
    raise RuntimeError(CANARY)
except RuntimeError:
    log.exception("failed with %s", CANARY)
log.info("stack", stack_info=True)
class Odd:
    def __str__(self): return "odd " + CANARY
log.info(Odd())
log.info("%s", Odd())
if sys.argv[1] == "uvicorn.access":
    log.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/?k=" + CANARY, "1.1", 200)
def work(): raise ValueError(CANARY)
thread = threading.Thread(target=work); thread.start(); thread.join()
raise KeyError(CANARY)
"""


@pytest.mark.parametrize("name", ["instar", "uvicorn.error", "uvicorn.access", "celery", "root"])
def test_s101_every_logger_and_every_last_traceback_is_redacted(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SPEAKER, name], capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    for words in ("plain", "RuntimeError", "Exception in thread", "KeyError", "odd [redacted]"):
        assert words in said, said
    # The source lines of a traceback name the variable, never the value.
    assert "5e4d3c2b1a" not in said.replace('CANARY = "canary-log-5e4d3c2b1a"', ""), said


def test_installing_twice_wraps_once() -> None:
    install_log_redaction()
    factory = logging.getLogRecordFactory()
    install_log_redaction()
    assert logging.getLogRecordFactory() is factory


def test_wrong_settings_are_named_without_their_secrets() -> None:
    code = "from instar.settings import load_settings; load_settings()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"INSTAR_API__PORT": "x", "INSTAR_SECRETS": "canary-settings-1", "PATH": "/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "settings are wrong" in done.stderr or "SettingsError" in done.stderr
    assert "canary-settings-1" not in done.stderr


def test_one_projects_secrets_do_not_mask_anothers_texts_but_every_log() -> None:
    mine, theirs, nobodys = (f"{word}-{'q' * 12}-value" for word in ("mine", "theirs", "nobody"))
    register_secret(mine, "project-1")
    register_secret(theirs, "project-2")
    register_secret(nobodys)
    text = f"{mine} {theirs} {nobodys}"

    def in_scope() -> str:
        scope_redaction("project-1")
        return mask_known(text)

    assert contextvars.copy_context().run(in_scope) == f"{MASK} {theirs} {MASK}"
    # Without a project in scope, and in logs whatever the scope, every value is masked.
    assert mask_known(text) == f"{MASK} {MASK} {MASK}"

    def logged() -> str:
        scope_redaction("project-1")
        return redact_log(text)

    assert contextvars.copy_context().run(logged) == f"{MASK} {MASK} {MASK}"
