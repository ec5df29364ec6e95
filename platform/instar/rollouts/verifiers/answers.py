"""Verifiers of the final answer's text: exact, numeric, regex, JSON schema."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from pydantic import Field, model_validator

from instar.rollouts.verifiers.base import quoted, read_config, score
from instar_core.base import Frozen, JsonValue, short
from instar_core.errors import VerifierError
from instar_core.json_schema import schema_problem
from instar_core.rollouts import Score, Trajectory
from instar_core.tasks import Task

__all__ = ["Exact", "JsonSchema", "Numeric", "Regex"]

MAX_ANSWER = 200_000
_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


def _expected(task: Task, value: JsonValue, key: str = "answer") -> JsonValue:
    """The expected value: from the configuration, else the task's reference answer."""
    found = task.reference_answer if value is None else value
    if found is None or found == "":
        raise VerifierError(
            f"verifier {task.verifier.name!r}: needs {key!r} in its config, or the task's "
            "reference_answer"
        )
    return found


class ExactConfig(Frozen):
    """What the answer must equal; any of several. Space around and between words is levelled."""

    answer: str | None = None
    accept: tuple[str, ...] = Field(default=(), description="further answers that count")
    ignore_case: bool = False
    after: str = Field(default="", description="only what follows the last such marker counts")


class Exact:
    """The answer equals the expected text."""

    name = "exact"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        _expected(task, read_config(ExactConfig, task).answer)

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when the answer is one of the expected texts, else 0."""
        config = read_config(ExactConfig, task)
        wanted = [str(_expected(task, config.answer)), *config.accept]
        given = trajectory.answer[:MAX_ANSWER]
        given = _after(given, config.after)
        level = _levelled(given, config.ignore_case)
        if any(level == _levelled(one, config.ignore_case) for one in wanted):
            return score(self.name, 1.0, "The answer is right.")
        return score(
            self.name, 0.0, f"The answer was {quoted(given)}; expected was {quoted(wanted[0])}."
        )


def _after(text: str, marker: str) -> str:
    """What follows the last marker; nothing where a wanted marker is missing."""
    if not marker:
        return text
    return text.rpartition(marker)[2] if marker in text else ""


def _levelled(text: str, ignore_case: bool) -> str:
    text = " ".join(text.split())
    return text.casefold() if ignore_case else text


class NumericConfig(Frozen):
    """The expected number and how far off counts as right."""

    answer: float | None = None
    tolerance: float = Field(default=1e-6, ge=0, description="absolute")
    relative: float = Field(default=0.0, ge=0, description="relative to the expected number")
    after: str = Field(default="", description="only what follows the last such marker counts")


class Numeric:
    """The last number in the answer is close enough to the expected one."""

    name = "numeric"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        self._wanted(task, read_config(NumericConfig, task))

    def _wanted(self, task: Task, config: NumericConfig) -> float:
        value = _expected(task, config.answer)
        try:
            number = float(str(value).replace(",", ""))
        except ValueError as error:
            raise VerifierError(f"verifier 'numeric': {value!r} is not a number") from error
        if not math.isfinite(number):
            raise VerifierError(f"verifier 'numeric': {value!r} is not a finite number")
        return number

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when the last number in the answer is within the tolerance, else 0."""
        config = read_config(NumericConfig, task)
        wanted = self._wanted(task, config)
        text = trajectory.answer[:MAX_ANSWER]
        text = _after(text, config.after)
        given = _last_number(text)
        if given is None:
            return score(self.name, 0.0, f"The answer {quoted(text)} holds no number.")
        allowed = max(config.tolerance, config.relative * abs(wanted))
        if abs(given - wanted) <= allowed:
            return score(self.name, 1.0, "The number is right.")
        return score(self.name, 0.0, f"The number was {given:g}; expected was {wanted:g}.")


def _last_number(text: str) -> float | None:
    for found in reversed([match.group() for match in _NUMBER.finditer(text)]):
        if any(char.isdigit() for char in found):
            value = float(found.replace(",", "").replace("−", "-"))
            if math.isfinite(value):
                return value
    return None


class RegexConfig(Frozen):
    """A pattern that the answer must match: somewhere in it, or as a whole."""

    pattern: str
    whole: bool = False
    ignore_case: bool = False


class Regex:
    """The answer matches a pattern."""

    name = "regex"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        self._compiled(read_config(RegexConfig, task))

    def _compiled(self, config: RegexConfig) -> re.Pattern[str]:
        try:
            compiled = re.compile(config.pattern, re.IGNORECASE if config.ignore_case else 0)
        except re.error as error:
            raise VerifierError(
                f"verifier 'regex': {config.pattern!r} is not a pattern: {error}"
            ) from error
        # An empty answer must never count as solved.
        if (compiled.fullmatch if config.whole else compiled.search)("") is not None:
            raise VerifierError(f"verifier 'regex': {config.pattern!r} matches the empty answer")
        return compiled

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when the pattern is found, else 0."""
        config = read_config(RegexConfig, task)
        compiled = self._compiled(config)
        text = trajectory.answer[:MAX_ANSWER]
        found = compiled.fullmatch(text.strip()) if config.whole else compiled.search(text)
        if found is not None:
            return score(self.name, 1.0, "The answer has the expected form.")
        return score(
            self.name, 0.0, f"The answer {quoted(text)} does not match {config.pattern!r}."
        )


class JsonSchemaConfig(Frozen):
    """A JSON Schema that the answer, read as JSON, must satisfy."""

    schema_: dict[str, JsonValue] = Field(alias="schema")

    @model_validator(mode="after")
    def _usable(self) -> JsonSchemaConfig:
        if self.schema_.get("type", "object") == "object":
            problem = schema_problem(self.schema_)
            if problem is not None:
                raise ValueError(problem)
        return self


class JsonSchema:
    """The answer is JSON that satisfies a schema."""

    name = "json_schema"
    needs_state = False

    def check(self, task: Task) -> None:
        """See :class:`~instar.rollouts.verifiers.base.Verifier`."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        config = read_config(JsonSchemaConfig, task)
        try:
            Draft202012Validator.check_schema(config.schema_)
        except SchemaError as error:
            raise VerifierError(
                f"verifier 'json_schema': schema: {short(error.message)}"
            ) from error

    def score(self, task: Task, trajectory: Trajectory) -> Score:
        """1 when the answer (without code fences) satisfies the schema, else 0."""
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match
        from referencing import Registry

        config = read_config(JsonSchemaConfig, task)
        try:
            value: Any = json.loads(_without_fence(trajectory.answer[:MAX_ANSWER]))
        except (ValueError, RecursionError) as error:
            return score(self.name, 0.0, f"The answer is not JSON: {short(str(error), 120)}.")
        validator = Draft202012Validator(config.schema_, registry=Registry())
        wrong = best_match(validator.iter_errors(value))
        if wrong is None:
            return score(self.name, 1.0, "The answer has the expected form.")
        where = ".".join(map(str, wrong.absolute_path)) or "answer"
        return score(self.name, 0.0, f"{where}: {short(wrong.message)}.")


def _without_fence(text: str) -> str:
    text = text.strip()
    if text.startswith("```") and text.endswith("```") and "\n" in text:
        return text.split("\n", 1)[1].rsplit("```", 1)[0]
    return text
