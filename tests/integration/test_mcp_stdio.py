"""MCP servers over stdio: real processes, from well-behaved to hostile."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.live import LiveTools
from instar.runtime.tools.mcp_client import McpConnection
from instar_core.errors import ToolServerError, UserError

SERVERS = Path(__file__).parent / "servers"
T = TypeVar("T")


def config(script: str, **changes: Any) -> ToolServerConfig:
    return ToolServerConfig.model_validate(
        {"name": "s", "command": "{python}", "args": [str(SERVERS / script)], **changes}
    )


def connected(settings: ToolServerConfig, use: Callable[[McpConnection], Awaitable[T]]) -> T:
    async def main() -> T:
        connection = McpConnection(settings, settings.launch_live())
        await connection.start()
        try:
            return await use(connection)
        finally:
            await connection.stop()
            assert connection.server.exit_code is not None

    return asyncio.run(main())


def gone(pid: int, timeout_s: float = 20.0) -> bool:
    """Waits for the kernel's word that a process has ended."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout_s)[0])
    finally:
        os.close(watched)


def test_s81_calls_reach_a_real_server_in_utf8(tmp_path: Path) -> None:
    settings = config("notes_server.py", env={"NOTES_DB": str(tmp_path / "notes.db")})

    async def use(connection: McpConnection) -> None:
        assert [tool.name for tool in connection.listing.tools] == [
            "write_note",
            "read_note",
            "wait_for_ever",
            "process_id",
        ]
        written = await connection.call("write_note", {"id": "1", "text": "grüße 日本 🦋"})
        assert written.text == "note 1 written"
        assert (await connection.call("read_note", {"id": "1"})).text == "grüße 日本 🦋"
        missing = await connection.call("read_note", {"id": "2"})
        assert missing.is_error
        assert "there is no note '2'" in missing.text

    connected(settings, use)


def test_concurrent_calls_on_one_connection_get_their_own_results(tmp_path: Path) -> None:
    settings = config("notes_server.py", env={"NOTES_DB": str(tmp_path / "notes.db")})

    async def use(connection: McpConnection) -> None:
        for name in "abcdef":
            await connection.call("write_note", {"id": name, "text": name * 3})
        results = await asyncio.gather(
            *(connection.call("read_note", {"id": name}) for name in "abcdef" * 5)
        )
        assert [result.text for result in results] == [name * 3 for name in "abcdef" * 5]

    connected(settings, use)


def test_s55_s57_s63_a_listing_of_everything_wrong_keeps_what_is_right() -> None:
    async def use(connection: McpConnection) -> None:
        listing = connection.listing
        names = [tool.name for tool in listing.tools]
        assert names == [
            *("echo", "no_schema", "größe.messen", "big", "hang", "die", "refuse", "structured"),
            "last",
        ]
        warnings = "\n".join(listing.warnings)
        assert "repeats the list cursor '2'" in warnings
        assert "lists the tool 'echo' twice" in warnings
        for name in ("null_schema", "string_schema", "odd_type"):
            assert f"tool {name!r} of server 's' is left out" in warnings
        assert warnings.count("without a name") == 2

    connected(config("odd_server.py"), use)


def test_s61_s83_results_of_every_shape() -> None:
    async def use(connection: McpConnection) -> None:
        assert (await connection.call("echo", {})).text == "{}"
        refused = await connection.call("refuse", {"a": "ü"})
        assert (refused.text, refused.is_error) == ('no such thing: {"a": "ü"}', True)
        good = await connection.call("structured", {"n": 1})
        assert (good.text, good.structured, good.is_error) == ('{"n":1}', {"n": 1}, False)
        bad = await connection.call("structured", {"n": "x"})
        assert bad.is_error
        assert "unusable result" in bad.text

    connected(config("odd_server.py"), use)


def test_s80_output_is_capped_and_a_flood_is_not_read() -> None:
    async def use(connection: McpConnection) -> None:
        long = await connection.call("big", {"characters": 5_000})
        assert long.cut_bytes == 10_000 - 1_000
        assert len(long.text.encode()) < 1_100
        assert "bytes left out" in long.text
        flood = await connection.call("big", {"characters": 400_000})
        assert flood.is_error
        assert "larger than 200000 bytes" in flood.text
        assert (await connection.call("echo", {"still": "here"})).text == '{"still": "here"}'

    connected(config("odd_server.py", max_output_bytes=1_000, max_message_bytes=200_000), use)


def test_s79_a_hung_call_ends_by_the_idle_and_by_the_absolute_limit() -> None:
    async def use(connection: McpConnection) -> None:
        hung = await connection.call("hang", {})
        assert hung.is_error
        assert "timed out" in hung.text
        assert connection.dirty
        assert (await connection.call("echo", {})).text == "{}"

    connected(config("odd_server.py", idle_timeout_s=0.3), use)
    connected(config("odd_server.py", call_timeout_s=0.3), use)


def test_a_server_that_dies_in_a_call_is_a_fault_with_its_last_words() -> None:
    async def use(connection: McpConnection) -> None:
        with pytest.raises(ToolServerError, match="gone.*'die'"):
            await connection.call("die", {})
        with pytest.raises(ToolServerError, match=r"exit code 5.*I am dying"):
            await connection.call("echo", {})

    connected(config("odd_server.py"), use)


def test_live_tools_start_a_dead_server_again() -> None:
    async def main() -> None:
        async with LiveTools([config("odd_server.py")]) as tools:
            with pytest.raises(ToolServerError):
                await tools.call("s", "die", {})
            assert (await tools.call("s", "echo", {})).text == "{}"
            with pytest.raises(UserError, match=r"registered as 'nope'; registered: 's'"):
                await tools.listing("nope")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": "no-such-program"}, "there is no program 'no-such-program' on the PATH"),
        ({"cwd": "/no/such/folder"}, "its folder '/no/such/folder' is missing"),
        (
            {"args": ["-c", "import sys; print('bad key', file=sys.stderr); sys.exit(3)"]},
            "exit code was 3. Its last words: 'bad key'",
        ),
        ({"args": ["-c", "print('hello')"]}, r"hello"),
        (
            {"args": ["-c", "import sys; sys.stdin.read()"], "start_timeout_s": 0.5},
            r"did not answer within 0.5 s",
        ),
    ],
)
def test_s85_a_server_that_does_not_start_says_why(changes: dict[str, Any], words: str) -> None:
    settings = config("odd_server.py", **changes)

    async def main() -> None:
        await McpConnection(settings, settings.launch_live()).start()

    with pytest.raises(ToolServerError) as caught:
        asyncio.run(main())
    assert words in str(caught.value)
    assert caught.value.remedy


def test_s85_the_environment_is_minimal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    settings = config("odd_server.py", env={"A": "1"})
    seen = McpConnection(settings, settings.launch_live()).server.environment()
    assert "OPENAI_API_KEY" not in seen
    assert seen["A"] == "1"
    assert seen["LC_ALL"] == "C.UTF-8"


def test_stopping_ends_even_a_server_that_ignores_everything() -> None:
    async def use(connection: McpConnection) -> list[int]:
        return [int(pid) for pid in (await connection.call("family", {})).text.split()]

    for pid in connected(config("stubborn_server.py"), use):
        assert gone(pid)


_PARENT = """
import asyncio, sys
from instar.runtime.tools.config import ToolServerConfig
from instar.runtime.tools.mcp_client import McpConnection

async def main():
    config = ToolServerConfig(name="s", command="{python}", args=(sys.argv[1],))
    connection = McpConnection(config, config.launch_live())
    await connection.start()
    print((await connection.call("family", {})).text, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_s51_no_child_outlives_a_killed_parent() -> None:
    """S51: SIGKILL leaves the parent no time to say anything."""
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(SERVERS / "stubborn_server.py")],
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        family = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(family) == 2
        parent.send_signal(signal.SIGKILL)
    for pid in family:
        assert gone(pid)
