"""Rollouts with real MCP servers: sandbox copies, resets, resumption, and an untouched live one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from instar.rollouts.backend import AgentBackend, BackendServices
from instar.rollouts.bindings import BoundServer, resolve_bindings
from instar.rollouts.prove import prove_tasks, validate_task
from instar.rollouts.slots import _PREFIX, SlotPool
from instar.runtime.calls import DirectCalls
from instar.runtime.testing import MemoryCalls, ScriptedModel, WordEmbedder
from instar.runtime.tools.config import TestBinding, ToolServerConfig
from instar_core.candidates import Candidate, Harness
from instar_core.errors import EnvironmentFault, ToolServerError, UserError
from instar_core.lab import CallOutcome, RolloutRequest
from instar_core.messages import Message
from instar_core.rollouts import Rollout
from instar_core.tasks import Task
from instar_core.testing import ReplyScript
from instar_evolvers.lab.durable import open_lab
from instar_evolvers.lab.memory import MemoryBook, MemoryJournal, Tape
from instar_evolvers.lab.rehearsal import Kill, Killed, MortalJournal

SERVER = Path(__file__).parent / "servers" / "notes_server.py"
T = TypeVar("T")

BINDING: dict[str, Any] = {
    "env": {"NOTES_DB": "{slot_dir}/notes.db"},
    "setup": [
        {
            "kind": "sqlite",
            "path": "notes.db",
            "statements": [
                {"sql": "insert into notes values (:id, :text)", "for_each": "notes"},
            ],
        }
    ],
    "state": {
        "kind": "sqlite",
        "path": "notes.db",
        "queries": {
            "written": "select id, text from notes where id = :target",
            "all": "select id, text from notes order by id",
            "old": "select id from notes where id = 'old'",
        },
    },
}


@pytest.fixture
def live(tmp_path: Path) -> Path:
    """The live database: what a night must never touch."""
    path = tmp_path / "live.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table notes (id text primary key, text text)")
        connection.execute("insert into notes values ('live', 'precious')")
    return path


@pytest.fixture
def server(live: Path, tmp_path: Path) -> ToolServerConfig:
    """The registered notes server with a binding that starts from a template."""
    template = tmp_path / "template.db"
    with closing(sqlite3.connect(template, isolation_level=None)) as connection:
        connection.execute("create table notes (id text primary key, text text)")
        connection.execute("insert into notes values ('old', 'template')")
    binding = TestBinding.model_validate(
        {**BINDING, "args": [str(SERVER)], "template": {"notes.db": str(template)}}
    )
    return ToolServerConfig(
        name="notes",
        command="{python}",
        args=(str(SERVER),),
        env={"NOTES_DB": str(live)},
        test_bindings={"sandbox": binding},
    )


def task(number: int, text: str = "hello", **changes: Any) -> Task:
    return Task.model_validate(
        {
            "id": f"t{number}",
            "input": f"note {number} {text}",
            "split": "train",
            "group": f"g{number}",
            "environment": {
                "target": f"n{number}",
                "notes": [{"id": f"seed{number}", "text": "seed"}],
            },
            "verifier": {"name": "state", "config": {"expect": {"written.0.text": text}}},
            "reference_actions": [
                {"name": "write_note", "arguments": {"id": f"n{number}", "text": text}}
            ],
            **changes,
        }
    )


def obey(messages: tuple[Message, ...]) -> str:
    _, number, text = messages[-1].content.split(" ", 2)
    return f'{{"tool": "write_note", "id": "n{number}", "text": "{text}"}}'


CANDIDATE = Candidate(
    components={},
    harness=Harness.model_validate(
        {
            "model": "m",
            "tool_protocol": "text",
            "final_after_tool": True,
            "tools": [{"name": "notes"}],
        }
    ),
)
SEVERAL_STEPS = CANDIDATE.model_copy(
    update={"harness": CANDIDATE.harness.model_copy(update={"final_after_tool": False})}
)


def services(
    server: ToolServerConfig, work: Path, rule: Any = obey, **more: Any
) -> BackendServices:
    model = ScriptedModel(ReplyScript([(lambda _: True, rule)]))
    return BackendServices(
        models=lambda _: model,
        servers=[server],
        bindings={"notes": "sandbox"},
        work_dir=work,
        **more,
    )


def with_backend(given: BackendServices, use: Callable[[AgentBackend], Awaitable[T]]) -> T:
    async def main() -> T:
        async with AgentBackend(given) as backend:
            return await use(backend)

    return asyncio.run(main())


def request(one: Task, *, arm: str = "", candidate: Candidate = CANDIDATE) -> RolloutRequest:
    return RolloutRequest(candidate=candidate, task=one, draw=0, arm=arm)


def test_a_night_leaves_the_live_database_untouched(
    server: ToolServerConfig, live: Path, tmp_path: Path
) -> None:
    before = hashlib.sha256(live.read_bytes()).hexdigest(), live.stat().st_mtime_ns

    async def night(backend: AgentBackend) -> list[Rollout]:
        rollouts = [
            backend.rollout(request(task(number), arm=arm), DirectCalls())
            for number in range(20)
            for arm in ("", "reference")
        ]
        return await asyncio.gather(*rollouts)

    rollouts = with_backend(services(server, tmp_path / "work", slots=3), night)
    assert [one.reward for one in rollouts] == [1.0] * 40
    assert (hashlib.sha256(live.read_bytes()).hexdigest(), live.stat().st_mtime_ns) == before
    assert sorted(path.name for path in live.parent.glob("live.db*")) == ["live.db"]
    assert list((tmp_path / "work").glob(f"{_PREFIX}*")) == []


def test_each_rollout_starts_from_the_template_and_its_own_environment(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    async def use(backend: AgentBackend) -> list[Rollout]:
        return [await backend.rollout(request(task(number)), DirectCalls()) for number in (1, 2)]

    rollouts = with_backend(services(server, tmp_path, slots=1), use)
    for number, rollout in zip((1, 2), rollouts, strict=True):
        assert rollout.trajectory.final_state == {
            "written": [{"id": f"n{number}", "text": "hello"}],
            "all": [
                {"id": f"n{number}", "text": "hello"},
                {"id": "old", "text": "template"},
                {"id": f"seed{number}", "text": "seed"},
            ],
            "old": [{"id": "old"}],
        }


def test_two_slots_at_once_do_not_see_each_other(server: ToolServerConfig, tmp_path: Path) -> None:
    arrived: list[int] = []
    both = asyncio.Event()

    def chat(messages: tuple[Message, ...]) -> str:
        if messages[-1].content.startswith("note "):
            return obey(messages)
        if "written" in messages[-1].content:
            return '{"tool": "read_note", "id": "n2"}'
        return messages[-1].content

    class Meeting(ScriptedModel):
        """Lets no rollout go on to read before both have written."""

        async def complete(self, request: Any) -> Any:
            if "written" in request.messages[-1].content:
                arrived.append(1)
                if len(arrived) == 2:
                    both.set()
                await both.wait()
            return await super().complete(request)

    model = Meeting(ReplyScript([(lambda _: True, chat)]))
    given = BackendServices(
        models=lambda _: model,
        servers=[server],
        bindings={"notes": "sandbox"},
        slots=2,
        work_dir=tmp_path,
    )

    async def use(backend: AgentBackend) -> list[Rollout]:
        return await asyncio.gather(
            *(
                backend.rollout(
                    request(task(number, f"text{number}"), candidate=SEVERAL_STEPS), DirectCalls()
                )
                for number in (1, 2)
            )
        )

    first, second = with_backend(given, use)
    assert "there is no note 'n2'" in first.trajectory.answer
    assert "text2" in second.trajectory.answer


def test_tasks_prove_themselves(server: ToolServerConfig, tmp_path: Path) -> None:
    solved_by_silence = task(
        3, verifier={"name": "state", "config": {"expect": {"old.0.id": "old"}}}
    )
    wrong_reference = task(
        4, verifier={"name": "state", "config": {"expect": {"written.0.text": "bye"}}}
    )

    async def use(backend: AgentBackend) -> list[Any]:
        return await prove_tasks(
            backend, CANDIDATE, [task(1), task(2), solved_by_silence, wrong_reference]
        )

    proofs = with_backend(services(server, tmp_path), use)
    assert [(proof.gold, proof.null, proof.sound) for proof in proofs] == [
        (1.0, 0.0, True),
        (1.0, 0.0, True),
        (1.0, 1.0, False),
        (0.0, 0.0, False),
    ]
    assert "expected was 'bye'" in proofs[3].problem


def test_a_resumed_rollout_brings_its_copy_back(server: ToolServerConfig, tmp_path: Path) -> None:
    async def use(backend: AgentBackend) -> tuple[Rollout, Rollout, MemoryCalls]:
        calls = MemoryCalls()
        whole = await backend.rollout(request(task(1)), calls)
        again = MemoryCalls(calls.outcomes)
        return whole, await backend.rollout(request(task(1)), again), again

    whole, resumed, again = with_backend(services(server, tmp_path), use)
    assert again.performed == 0
    assert resumed == whole
    assert resumed.reward == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_night_killed_again_and_again_ends_as_an_undisturbed_one(
    server: ToolServerConfig, tmp_path: Path, after: bool
) -> None:
    """Rollouts of several steps through the durable Lab, each life with copies of its own."""
    tasks = [task(number, f"text{number}") for number in range(4)]
    asked: list[str] = []

    def chat(messages: tuple[Message, ...]) -> str:
        asked.append(messages[-1].content)
        if messages[-1].content.startswith("note "):
            return obey(messages)
        if " written" in messages[-1].content:
            number = messages[-2].content.split('"id": "n')[1][0]
            return f'{{"tool": "read_note", "id": "n{number}"}}'
        return f"It says: {messages[-1].content}"

    async def life(tape: Tape, kill: Kill) -> list[Rollout]:
        journal = MortalJournal(MemoryJournal(tape=tape, json_round_trip=True), kill)
        async with AgentBackend(services(server, tmp_path, chat, slots=1)) as backend:
            lab = open_lab("r", backend, journal, MemoryBook(()), incumbent=SEVERAL_STEPS)
            try:
                await lab.start()
                return await lab.rollouts(SEVERAL_STEPS, tasks)
            finally:
                await lab.close()

    undisturbed = asyncio.run(life(Tape(), Kill()))
    assert [one.reward for one in undisturbed] == [1.0] * 4
    calls = len(asked)
    asked.clear()
    tape, kills = Tape(), 0
    for at in (9, 11, 8, 14):
        with pytest.raises(Killed):
            asyncio.run(life(tape, Kill(at, after=after)))
        kills += 1
    resumed = asyncio.run(life(tape, Kill()))
    assert [outcome(one) for one in resumed] == [outcome(one) for one in undisturbed]
    # Each life can lose at most one call per rollout that was in flight, and repeats nothing else.
    assert calls <= len(asked) <= calls + kills * len(tasks)


def outcome(rollout: Rollout) -> tuple[Any, ...]:
    """What a rollout comes to, without the time it took."""
    return (
        rollout.id,
        rollout.reward,
        rollout.trajectory.answer,
        rollout.trajectory.final_state,
        [step.message for step in rollout.trajectory.steps],
    )


def test_a_copy_that_cannot_be_brought_back_is_a_fault(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    async def use(backend: AgentBackend) -> None:
        calls = MemoryCalls()
        await backend.rollout(request(task(1)), calls)
        key, tool = calls.outcomes[1]
        assert isinstance(tool.value, dict)
        changed = CallOutcome(value={**tool.value, "text": "something else"}, usage=tool.usage)
        again = MemoryCalls([calls.outcomes[0], (key, changed)])
        with pytest.raises(EnvironmentFault, match="cannot be brought back"):
            await backend.rollout(request(task(1)), again)

    with_backend(services(server, tmp_path), use)


def test_what_the_agent_causes_scores_zero_with_words(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    async def use(backend: AgentBackend) -> Rollout:
        return await backend.rollout(request(task(1), candidate=SEVERAL_STEPS), DirectCalls())

    def stubborn(messages: Any) -> str:
        return '{"tool": "write_note", "id": 1}'

    rollout = with_backend(services(server, tmp_path, stubborn), use)
    assert rollout.score is not None
    assert (rollout.reward, rollout.trajectory.stop) == (0.0, "identical_calls")
    assert "same call more than 3 times" in rollout.score.feedback


def test_a_quote_refuses_tools_without_a_binding(server: ToolServerConfig, tmp_path: Path) -> None:
    given = services(server, tmp_path)
    for bindings, words in (
        ({}, "names no test binding for tool server 'notes'"),
        ({"notes": "other"}, r"no test binding 'other' \(it has: 'sandbox'\)"),
    ):
        backend = AgentBackend(
            BackendServices(models=given.models, servers=[server], bindings=bindings)
        )
        with pytest.raises(UserError, match=words):
            backend.check(CANDIDATE, [task(1)])
        with pytest.raises(UserError, match=words):
            asyncio.run(backend.rollout(request(task(1)), DirectCalls()))
    AgentBackend(given).check(CANDIDATE, [task(1)])


def test_a_server_free_of_effects_runs_without_its_live_environment(
    server: ToolServerConfig, live: Path
) -> None:
    async def work() -> None:
        config = server.model_copy(update={"effect_free": True})
        pool = SlotPool({"notes": BoundServer(config, None)}, 1)
        try:
            assert not pool.is_private("notes") and pool.offers("notes")
            read = await pool.call_shared("notes", "read_note", {"id": "live"})
            wrote = await pool.call_shared("notes", "write_note", {"id": "live", "text": "x"})
            assert read.is_error and wrote.is_error and "precious" not in read.text
        finally:
            await pool.close()

    before = hashlib.sha256(live.read_bytes()).hexdigest()
    asyncio.run(work())
    assert hashlib.sha256(live.read_bytes()).hexdigest() == before


def test_a_server_that_does_not_start_is_infrastructure_and_no_score(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    binding = server.test_bindings["sandbox"].model_copy(
        update={"args": ("-c", "raise SystemExit('no licence')")}
    )
    broken = server.model_copy(update={"test_bindings": {"sandbox": binding}})

    async def use(backend: AgentBackend) -> None:
        with pytest.raises(ToolServerError, match="no licence"):
            await backend.rollout(request(task(1)), DirectCalls())

    with_backend(services(broken, tmp_path), use)


def test_a_missing_template_names_itself(server: ToolServerConfig, tmp_path: Path) -> None:
    binding = server.test_bindings["sandbox"].model_copy(
        update={"template": {"notes.db": "no/such.db"}}
    )
    broken = server.model_copy(update={"test_bindings": {"sandbox": binding}})

    async def use(backend: AgentBackend) -> None:
        with pytest.raises(EnvironmentFault, match=r"no/such\.db"):
            await validate_task(backend, CANDIDATE, task(1))

    with_backend(services(broken, tmp_path), use)


def test_servers_that_keep_state_in_memory_are_restarted_on_request(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    def whoami(messages: tuple[Message, ...]) -> str:
        return '{"tool": "process_id"}'

    def pids(restart: bool) -> set[str]:
        binding = server.test_bindings["sandbox"].model_copy(update={"restart_between": restart})
        changed = server.model_copy(update={"test_bindings": {"sandbox": binding}})

        async def use(backend: AgentBackend) -> set[str]:
            done = [
                await backend.rollout(request(task(number)), DirectCalls()) for number in (1, 2)
            ]
            return {rollout.trajectory.answer for rollout in done}

        return with_backend(services(changed, tmp_path, whoami, slots=1), use)

    assert len(pids(False)) == 1
    assert len(pids(True)) == 2


def test_an_abandoned_call_costs_its_copy_and_leaves_no_folder(
    server: ToolServerConfig, tmp_path: Path
) -> None:
    pipe, work = tmp_path / "busy", tmp_path / "work"
    os.mkfifo(pipe)
    binding = server.test_bindings["sandbox"]
    binding = binding.model_copy(update={"env": {**binding.env, "BUSY": str(pipe)}})
    changed = server.model_copy(update={"test_bindings": {"sandbox": binding}})

    def rule(messages: tuple[Message, ...]) -> str:
        waits = messages[-1].content.startswith("note 2")
        return f'{{"tool": "{"wait_for_ever" if waits else "process_id"}"}}'

    async def use(backend: AgentBackend) -> list[str]:
        before = await backend.rollout(request(task(1)), DirectCalls())
        hanging = asyncio.create_task(backend.rollout(request(task(2)), DirectCalls()))
        assert await asyncio.to_thread(pipe.read_text) == "busy"
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        after = await backend.rollout(request(task(3)), DirectCalls())
        return [before.trajectory.answer, after.trajectory.answer]

    before, after = with_backend(services(changed, work, rule, slots=1), use)
    assert before != after
    assert list(work.glob(f"{_PREFIX}*")) == []


def test_ask_and_embed(server: ToolServerConfig, tmp_path: Path) -> None:
    given = services(
        server, tmp_path, lambda _: "use harbor", proposer="big", embedder=WordEmbedder()
    )

    async def use(backend: AgentBackend) -> None:
        calls = MemoryCalls()
        messages = (Message(role="user", content="what now?"),)
        assert await backend.ask("proposer", messages, calls) == "use harbor"
        assert calls.performed == 1
        assert await backend.ask("proposer", messages, MemoryCalls(calls.outcomes)) == "use harbor"
        with pytest.raises(UserError, match="No model is configured as judge"):
            await backend.ask("judge", messages, calls)
        one, two = await backend.embed(["a b", "a b"])
        assert one == two

    with_backend(given, use)


def test_a_binding_that_leaves_the_arguments_to_the_live_server_is_refused(
    server: ToolServerConfig,
) -> None:
    """Live arguments may name live data; a night would then write to it."""
    lazy = server.test_bindings["sandbox"].model_copy(update={"args": ()})
    changed = server.model_copy(update={"test_bindings": {"sandbox": lazy}})
    with pytest.raises(UserError, match="gives no 'args' of its own"):
        resolve_bindings(CANDIDATE, [changed], {"notes": "sandbox"})
