"""Secret values in registrations: found by name and by shape, and taken out.

Pure functions over a :class:`ToolServerConfig`. What looks like a secret in an environment or an
argument list is cut out as narrowly as it can be: of an address only its password, of a header only
what follows its name and scheme. Where in doubt a value counts as secret: the store gives it back
to the program unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from instar.redaction import is_secret_variable
from instar.runtime.tools.config import TestBinding, ToolServerConfig
from instar.store.secret_box import SecretUse
from instar.store.secret_refs import find_references, reference_to

__all__ = ["FoundSecret", "split_secrets"]

_MINIMUM = 4
_HARMLESS = re.compile(
    r"(?i)(true|false|yes|no|on|off|none|null|auto|default|\d{1,5}|https?|basic|bearer|oauth2?)"
)
_PLACEHOLDER = re.compile(r"\{(python|root|slot_dir)\}")
_HEADER = re.compile(
    r"(?P<keep>(?P<name>[A-Za-z0-9-]+):\s*(?:(?:bearer|basic|token)\s+)?)(.+)", re.I
)
_OPTION = re.compile(r"(?P<keep>-{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*)[=:])(.+)", re.S)
_QUERY = re.compile(r"(?P<keep>[?&;](?P<name>[A-Za-z0-9_.-]+)=)([^&#;\s]+)")
_SHAPES = (
    re.compile(r"(?P<keep>[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:)([^@/\s]+)(?=@)"),
    re.compile(r"(?P<keep>\b(?:bearer|basic)\s+)([A-Za-z0-9._~+/=-]{8,})", re.I),
    re.compile(
        r"(?P<keep>)(\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abprs]|hf|AIza|AKIA|instar|npm"
        r"|pypi|ya29|eyJ)[-_.]?[A-Za-z0-9_.-]{16,})"
    ),
)
# Random letters and digits: what a generator of keys makes and a person does not.
_OPAQUE = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[A-Za-z0-9_+=-]{20,}")


class FoundSecret(NamedTuple):
    """A secret value in a registration.

    Attributes:
        place: Where it was, for people: ``env API_KEY``, ``args[2]``.
        name: What it should be called in the store.
        use: What it may be used for there.
        value: The value.
    """

    place: str
    name: str
    use: SecretUse
    value: str

    def __repr__(self) -> str:
        return f"FoundSecret({self.place!r}, {self.name!r}, {self.use!r})"


class _Cutter:
    """Cuts values out of the texts of one environment and argument list."""

    def __init__(self, prefix: str, where: str, use: SecretUse, found: list[FoundSecret]) -> None:
        self._prefix = prefix
        self._where = where
        self._use: SecretUse = use
        self._found = found

    def environment(self, values: Mapping[str, str]) -> dict[str, str]:
        return {
            name: self._text(value, f"env {name}", name, named=is_secret_variable(name))
            for name, value in values.items()
        }

    def arguments(self, values: Sequence[str]) -> tuple[str, ...]:
        left: list[str] = []
        before = ""
        for number, value in enumerate(values):
            place = f"args[{number}]"
            option = before.lstrip("-") if before.startswith("-") else ""
            if option.lower() in ("h", "header"):
                left.append(self._part(value, _HEADER, place) or self._text(value, place, place))
            elif option and is_secret_variable(option) and not value.startswith("-"):
                left.append(self._text(value, place, option, named=True))
            else:
                left.append(self._part(value, _OPTION, place) or self._text(value, place, place))
            before = value
        return tuple(left)

    def _part(self, text: str, form: re.Pattern[str], place: str) -> str | None:
        """The text without the value behind a secret name; ``None`` where there is none."""
        found = form.fullmatch(text)
        if found is None or not is_secret_variable(found["name"]) or "//" in found["keep"]:
            return None
        return found["keep"] + self._text(found[3], place, found["name"], named=True)

    def _text(self, text: str, place: str, name: str, *, named: bool = False) -> str:
        if find_references(text):
            return text
        cut = text
        for shape in _SHAPES:
            cut = shape.sub(lambda found: found["keep"] + self._take(found[2], place, name), cut)
        cut = _QUERY.sub(
            lambda found: (
                found["keep"] + self._take(found[3], place, f"{name}.{found['name']}")
                if is_secret_variable(found["name"]) and not find_references(found[3])
                else found[0]
            ),
            cut,
        )
        if cut != text:
            return cut
        secret = named and len(text) >= _MINIMUM and not _HARMLESS.fullmatch(text)
        if _PLACEHOLDER.search(text) or not (secret or _OPAQUE.fullmatch(text)):
            return text
        return self._take(text, place, name)

    def _take(self, value: str, place: str, name: str) -> str:
        label = re.sub(r"[^A-Za-z0-9_.-]", "", name.replace("[", "").strip("-"))
        number = len(self._found)
        self._found.append(
            FoundSecret(f"{self._where}{place}", f"{self._prefix}.{label}", self._use, value)
        )
        return reference_to(f"@{number}")


def split_secrets(config: ToolServerConfig) -> tuple[ToolServerConfig, list[FoundSecret]]:
    """The registration without secret values, and the values.

    Returns:
        The registration with ``${secret:@0}``, ``${secret:@1}`` … in their places, and the values
        in that order; those of test bindings are for rollouts.
    """
    found: list[FoundSecret] = []
    live = _Cutter(config.name, "", "production", found)
    env, args = live.environment(config.env), live.arguments(config.args)
    bindings: dict[str, TestBinding] = {}
    for name, binding in config.test_bindings.items():
        cutter = _Cutter(f"{config.name}.{name}", f"test binding {name}: ", "rollouts", found)
        changes = {
            "env": cutter.environment(binding.env),
            "args": cutter.arguments(binding.args),
        }
        bindings[name] = binding.model_copy(update=changes)
    left = config.model_copy(update={"env": env, "args": args, "test_bindings": bindings})
    return left, found
