"""Python tools: functions of this installation offered as tools, schema from their signature.

A parameter annotated with :class:`ToolContext` is filled in by the runtime and hidden from the
model; it tells a function where its sandbox copy lives, so that a test binding works for functions
as it does for servers.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.listing import ListedTool, Listing, check_listing
from instar.runtime.tools.results import ToolResult, tool_result
from instar_core.base import JsonValue, canonical_json, short
from instar_core.errors import InfrastructureError, ToolServerError, UserError

__all__ = ["PythonTools", "ToolContext"]


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a call runs: a sandbox copy's private folder (``None`` in production), settings."""

    slot_dir: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Function:
    run: Callable[..., Any]
    arguments: type[BaseModel]
    context_parameter: str | None
    listed: ListedTool


class PythonTools:
    """The functions of one registered tool source, listed and called like a server's tools."""

    def __init__(self, config: ToolServerConfig, context: ToolContext) -> None:
        self.config = config
        self.context = context
        self.listing = Listing(())
        self.dirty = False  # a call was abandoned and may still be at work
        self._functions: dict[str, _Function] = {}

    @property
    def alive(self) -> bool:
        """Always: there is no process to die."""
        return True

    async def start(self) -> Listing:
        """Imports the functions and derives their schemas.

        Raises:
            UserError: If an entry cannot be imported or its signature has no schema.
        """
        found = [_load(entry) for entry in self.config.functions]
        self._functions = {function.listed.name: function for function in found}
        self.listing = check_listing(self.config.name, [function.listed for function in found])
        return self.listing

    async def stop(self) -> None:
        """Nothing to end."""

    async def call(self, tool: str, arguments: dict[str, JsonValue]) -> ToolResult:
        """Calls a function. An exception inside it is an error result, except infrastructure's.

        A function that is not ``async`` runs in a thread; past the time limit its result is
        abandoned, though the thread itself cannot be stopped.
        """
        function = self._functions.get(tool)
        if function is None:
            raise ToolServerError(f"tool source {self.config.name!r} has no function {tool!r}")
        try:
            checked = function.arguments.model_validate(arguments)
        except ValidationError as error:
            return self._text(f"{tool}: {error.errors()[0]['msg']}", is_error=True)
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if function.context_parameter is not None:
            values[function.context_parameter] = self.context
        try:
            async with asyncio.timeout(self.config.call_timeout_s):
                if inspect.iscoroutinefunction(function.run):
                    value = await function.run(**values)
                else:
                    value = await _in_thread(function.run, values)
            return self._text(value if isinstance(value, str) else _as_json(value))
        except asyncio.CancelledError:
            self.dirty = True
            raise
        except TimeoutError:
            self.dirty = True
            limit = self.config.call_timeout_s
            return self._text(f"{tool} timed out: {limit:g} s without an answer", is_error=True)
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is the agent's to see
            return self._text(f"{tool} failed: {type(error).__name__}: {error}", is_error=True)

    def _text(self, text: str, *, is_error: bool = False) -> ToolResult:
        return tool_result(text, self.config.max_output_bytes, is_error=is_error)


async def _in_thread(run: Callable[..., Any], values: dict[str, Any]) -> Any:
    """The function's result from a thread that does not hold up the end of the process.

    A thread of the loop's own pool would: closing the loop waits for it, however long it hangs.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            done.set_exception(error)

    def work() -> None:
        value, failure = None, None
        try:
            value = run(**values)
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            failure = error
        with suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, daemon=True, name="instar-python-tool").start()
    return await done


def _as_json(value: Any) -> str:
    return canonical_json(value).decode()


def _load(entry: str) -> _Function:
    """The function behind ``module:function``, with the model of its arguments."""
    module_name, _, name = entry.partition(":")
    try:
        run = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"Python tool {entry!r} cannot be imported: {error}.",
            remedy="Write it as 'package.module:function' of an installed package.",
        ) from error
    if not callable(run):
        raise UserError(f"Python tool {entry!r} is not a function but {short(repr(run), 80)}.")
    try:
        hints = get_type_hints(run)
        fields, context_parameter = _fields(entry, run, hints)
        arguments = create_model(
            f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields
        )
        schema = arguments.model_json_schema()
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"Python tool {entry!r} has no usable signature: {short(str(error))}",
            remedy="Annotate every parameter with a type that has a JSON schema.",
        ) from error
    description = inspect.cleandoc(run.__doc__ or "")
    return _Function(run, arguments, context_parameter, ListedTool(name, description, schema))


def _fields(
    entry: str, run: Callable[..., Any], hints: Mapping[str, Any]
) -> tuple[dict[str, Any], str | None]:
    fields: dict[str, Any] = {}
    context_parameter: str | None = None
    for parameter in inspect.signature(run).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UserError(f"Python tool {entry!r} takes *{parameter.name}, which has no schema.")
        if parameter.name not in hints:
            raise UserError(
                f"Python tool {entry!r}: parameter {parameter.name!r} has no type annotation."
            )
        if hints[parameter.name] is ToolContext:
            context_parameter = parameter.name
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return fields, context_parameter
