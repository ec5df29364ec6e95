"""No password is the same in two installations: none stands in the code (A37)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from instar.redaction import is_secret_variable
from instar.settings import Settings

ROOT = Path(__file__).parents[3]
SOURCES = sorted(
    path
    for folder in ("core", "platform", "skills", "memory", "evolvers", "rl", "web", "examples")
    for path in (ROOT / folder).rglob("*.py")
    # Throw-away servers of tests; nothing of a service imports it.
    if path.name != "testing.py" and "node_modules" not in path.parts
)
_ADDRESS = re.compile(r"://[\w.%-]+:([\w.%-]+)@")
# Words that stand for a password in messages and examples.
_WORDS = {"password", "pass", "***"}


def assigned(tree: ast.AST) -> list[tuple[str, str]]:
    """Names and keyword arguments that are given a text where they are written."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            found += [(name, str(node.value.value)) for name in names]
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Constant) and node.arg:
            found.append((node.arg, str(node.value.value)))
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a37_no_source_holds_a_password(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name, value in assigned(ast.parse(text)):
        if re.search(r"(?i)passw|passphrase|secret_key|client_secret$", name) and value:
            # The names of variables and headers, flags and types are no passwords.
            harmless = value in ("True", "False", "None") or is_secret_variable(value)
            assert harmless or " " in value or value.startswith("--"), f"{name} = {value!r}"
    for found in _ADDRESS.findall(text):
        assert found.lower() in _WORDS, f"an address with the password {found!r}"


def test_a37_settings_have_no_password_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL", "INSTAR_DATABASE_URL", "INSTAR_REDIS_URL"):
        monkeypatch.delenv(name, raising=False)
    settings = Settings()
    assert settings.database_url is None and settings.redis_url is None
    assert settings.secrets.keys.get_secret_value() == ""
    for line in settings.model_dump_json(indent=1).splitlines():
        name, _, value = line.strip().partition(": ")
        if is_secret_variable(name.strip('"')):
            assert value.strip('",') in ("", "null", "{}", "{"), line


def test_the_keys_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INSTAR_SECRETS__KEYS", "canary-of-the-keys")
    settings = Settings()
    assert "canary-of-the-keys" not in repr(settings) + settings.model_dump_json()
