"""Agent files of a retired server: one JSON with an agent's memory blocks, tools and messages.

Two forms are read: the older, of one agent with everything inside it, and the newer, of lists that
refer to each other by id. The file becomes an export of ours, so that its import is checked, shown
as a dry run and written like any other. Nothing in it is run: a tool's source is kept as evidence
of the tool's definition, and the tool belongs to no server until a person registers one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from instar import __version__
from instar.redaction import redact, redact_text
from instar.registry.kinds import open_kind
from instar.registry.transfer.contents import parse_json
from instar.registry.transfer.exporting import manifest_bytes
from instar.registry.transfer.manifest import (
    FORMAT,
    MANIFEST,
    ArtifactFacts,
    AuthorFacts,
    FileFacts,
    Manifest,
    PartFacts,
    VersionFacts,
)
from instar.store.agents import AGENT, agent_bundle
from instar.store.artifacts import JSON, encode_content
from instar.store.names import check_name
from instar_core.base import JsonValue, canonical_json, content_hash, short
from instar_core.candidates import ARTIFACT_KINDS, Candidate, Component, Harness
from instar_core.errors import InvalidContent
from instar_core.kinds import check_content
from instar_core.messages import Sampling
from instar_skills.check import plain_name

__all__ = ["ConvertedAgents", "convert_agent_file"]

_AUTHOR = AuthorFacts(kind="person", name="agent file")
_MAX_MESSAGES_BYTES = 400_000
_MAX_SOURCE_CHARACTERS = 150_000
_OWN_TOOLS = ("letta_", "memgpt_")
_TEMPERATURE, _MAX_TOKENS = 0.0, 1024
# What has no place here, and why.
_DROPPED = {
    "tool_rules": "rules on the order of tools are the retired server's; write them as a policy",
    "tool_exec_environment_variables": "values of environment variables are never taken; set them "
    "as secrets",
    "embedding_config": "vectors are made anew by the embedder here",
    "response_format": "set the form of answers in the instructions or the harness",
    "multi_agent_group": "groups of agents are not imported",
    "group_ids": "groups of agents are not imported",
    "files_agents": "files are not imported; add them to a skill or to memory",
    "source_ids": "sources are not imported; add them to a skill or to memory",
    "identity_ids": "identities are people of the retired server",
    "identities": "identities are people of the retired server",
}
_DROPPED_LISTS = {
    "groups": "groups of agents are not imported",
    "files": "files are not imported; add them to a skill or to memory",
    "sources": "sources are not imported; add them to a skill or to memory",
    "mcp_servers": "register tool servers anew: `instar mcp import` takes client configurations",
}


class ConvertedAgents(NamedTuple):
    """An export that holds what was taken, and what is to be said about the rest."""

    files: dict[str, bytes]
    report: tuple[str, ...]


@dataclass(slots=True)
class _Conversion:
    """What has been taken so far."""

    artifacts: dict[tuple[str, str], ArtifactFacts] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    report: list[str] = field(default_factory=list)
    moment: str = ""

    def say(self, words: str) -> None:
        """Adds a line to the report, without secrets."""
        self.report.append(redact_text(words))

    def add(
        self, kind: str, name: str, content: JsonValue, *, description: str = "", **facts: Any
    ) -> tuple[int, str]:
        """Takes one artifact with one version; returns the number and digest to pin."""
        check_name(kind, name)
        data, media_type = encode_content(content)
        digest = content_hash(data)
        blob = f"blobs/{digest}"
        self.files[blob] = data
        version = VersionFacts(
            number=1,
            digest=digest,
            media_type=media_type,
            size=len(data),
            blob=blob,
            author=_AUTHOR,
            created_at=self.moment,
            **facts,
        )
        self.artifacts[kind, name] = ArtifactFacts(
            kind=kind, name=name, description=short(description, 1_000), versions=(version,)
        )
        return 1, digest

    def free_name(self, kind: str, wanted: str) -> str:
        """A name that is none of those taken."""
        name, count = wanted, 1
        while (kind, name) in self.artifacts:
            count += 1
            name = f"{wanted}-{count}"
        return name


def convert_agent_file(data: bytes, source: str) -> ConvertedAgents:
    """What an agent file holds, as an export that can be imported.

    Args:
        data: The file.
        source: What it is called in messages.

    Returns:
        The files of the export, and a report: what was taken, changed and left out, and why.

    Raises:
        InvalidContent: If it is no agent file, or one that refers to what it does not hold.
    """
    value = parse_json(data, source)
    document = _mapping(value, source)
    agents: JsonValue = document["agents"] if "agents" in document else [value]
    if not isinstance(agents, list) or not agents or not _looks_like(document):
        raise InvalidContent(
            f"{source!r} is no agent file: it has neither 'agents' nor 'system' with 'messages'.",
            remedy="Export the agent from its server as a file that ends in .af.",
        )
    state = _Conversion(moment=datetime.now(UTC).isoformat(timespec="seconds"))
    for key, why in _DROPPED_LISTS.items():
        found = document.get(key)
        if isinstance(found, list) and found and "agents" in document:
            state.say(f"left out: {len(found)} {key}: {why}")
    tools = _by_id(document.get("tools"), "tools")
    blocks = _by_id(document.get("blocks"), "blocks")
    for agent in agents:
        _take_agent(state, _mapping(agent, f"{source}: an agent"), tools, blocks)
    return ConvertedAgents(_finish(state, source), tuple(state.report))


def _looks_like(document: Mapping[str, JsonValue]) -> bool:
    return "agents" in document or ("system" in document and "messages" in document)


def _finish(state: _Conversion, source: str) -> dict[str, bytes]:
    manifest = Manifest(
        format=FORMAT,
        instar=__version__,
        project=short(source, 200),
        moment=state.moment,
        artifacts=tuple(state.artifacts[key] for key in sorted(state.artifacts)),
        files=tuple(
            FileFacts(path=path, sha256=content_hash(data), size=len(data))
            for path, data in sorted(state.files.items())
        ),
    )
    return {**state.files, MANIFEST: manifest_bytes(manifest)}


def _take_agent(
    state: _Conversion,
    agent: Mapping[str, JsonValue],
    tools: Mapping[str, Mapping[str, JsonValue]],
    blocks: Mapping[str, Mapping[str, JsonValue]],
) -> None:
    """One agent: its instructions, memory and tools as artifacts, and the bundle that pins them."""
    given = _text(agent, "name")
    name = state.free_name(AGENT, plain_name(given, AGENT))
    if name != given:
        state.say(f"changed: the agent {given!r} is called {name!r} here")
    system = _text(agent, "system")
    components = {"instructions": Component(kind="instructions", content=system)}
    memory = _memory(state, agent, blocks, name)
    if memory is not None:
        components["memory"] = Component(kind="memory", content=memory)
    candidate = Candidate(components=components, harness=_harness(state, agent, name))
    pins = {
        part: state.add(ARTIFACT_KINDS[one.kind], f"{name}/{part}", one.content)
        for part, one in candidate.components.items()
    }
    named = _take_tools(state, agent, tools, name)
    for key, why in _DROPPED.items():
        if agent.get(key):
            state.say(f"left out: {key} of {name!r}{_count(agent[key])}: {why}")
    bundle = canonical_json(agent_bundle(name, candidate, pins))
    blob = f"blobs/{content_hash(bundle)}"
    state.files[blob] = bundle
    version = VersionFacts(
        number=1,
        digest=content_hash(bundle),
        media_type=JSON,
        size=len(bundle),
        blob=blob,
        subject_digest=candidate.digest,
        author=_AUTHOR,
        reason="imported from an agent file",
        evidence={"tools": named, **_messages(state, agent, name)},
        parts=tuple(
            PartFacts(part=part, kind=ARTIFACT_KINDS[one.kind], name=f"{name}/{part}", number=1)
            for part, one in candidate.components.items()
        ),
        created_at=state.moment,
    )
    description = agent.get("description")
    state.artifacts[AGENT, name] = ArtifactFacts(
        kind=AGENT,
        name=name,
        description=short(description, 1_000) if isinstance(description, str) else "",
        versions=(version,),
    )
    state.say(f"taken: agent {name!r} with its instructions ({len(system)} characters)")


def _harness(state: _Conversion, agent: Mapping[str, JsonValue], name: str) -> Harness:
    """The model by its handle; the agent runs once that model is configured here."""
    config = agent.get("llm_config")
    found = config if isinstance(config, dict) else {}
    handle = found.get("handle") or found.get("model") or agent.get("model") or "unknown/unknown"
    temperature = found.get("temperature")
    tokens = found.get("max_tokens")
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        temperature = _TEMPERATURE
    if not isinstance(tokens, int) or not 1 <= tokens <= 10**7:
        tokens = _MAX_TOKENS
    state.say(f"taken: the model {handle!r} of {name!r} by name; configure it before the first run")
    sampling = Sampling(temperature=float(temperature), max_tokens=tokens)
    return Harness(model=str(handle), sampling=sampling)


def _memory(
    state: _Conversion,
    agent: Mapping[str, JsonValue],
    blocks: Mapping[str, Mapping[str, JsonValue]],
    name: str,
) -> JsonValue:
    """The agent's memory blocks as entries of a memory bank; ``None`` where it has none."""
    found: list[Mapping[str, JsonValue]] = []
    for key in _list(agent, "block_ids"):
        if str(key) not in blocks:
            raise InvalidContent(
                f"the agent {name!r} refers to the block {key!r}, which is not in it."
            )
        found.append(blocks[str(key)])
    for field_name in ("memory_blocks", "core_memory"):
        found += [_mapping(one, field_name) for one in _list(agent, field_name)]
    entries: list[JsonValue] = []
    labels: dict[str, int] = {}
    for block in found:
        label, text = str(block.get("label") or "block"), block.get("value")
        if not isinstance(text, str) or not text.strip():
            state.say(f"left out: the block {label!r} of {name!r}: it is empty")
            continue
        labels[label] = labels.get(label, 0) + 1
        suffix = f"-{labels[label]}" if labels[label] > 1 else ""
        note = str(block.get("description") or "")
        read_only = ["read-only"] if block.get("read_only") else []
        entries.append(
            {
                "id": f"{label}{suffix}",
                "text": text,
                "tags": ["block", label, *read_only],
                "source": {"note": short(note, 500)},
            }
        )
    if not entries:
        return None
    state.say(f"taken: {len(entries)} memory blocks of {name!r} as a memory bank")
    return check_content(open_kind("memory_bank"), {"entries": entries})


def _take_tools(
    state: _Conversion,
    agent: Mapping[str, JsonValue],
    tools: Mapping[str, Mapping[str, JsonValue]],
    agent_name: str,
) -> list[JsonValue]:
    """The agent's own tools as definitions; returns their names here."""
    found: list[Mapping[str, JsonValue]] = []
    for key in _list(agent, "tool_ids"):
        if str(key) not in tools:
            raise InvalidContent(
                f"the agent {agent_name!r} refers to the tool {key!r}, which is not in it."
            )
        found.append(tools[str(key)])
    found += [_mapping(one, "tools") for one in _list(agent, "tools")]
    named: list[JsonValue] = []
    for tool in found:
        name = _text(tool, "name")
        if str(tool.get("tool_type") or "").startswith(_OWN_TOOLS):
            state.say(f"left out: the tool {name!r}: it is a part of the retired server")
            continue
        taken = _take_tool(state, tool, name)
        if taken:
            named.append(taken)
    return named


def _take_tool(state: _Conversion, tool: Mapping[str, JsonValue], name: str) -> str:
    """One tool as a definition of a tool that no server offers; empty if it cannot be one."""
    schema = tool.get("json_schema")
    shown = schema if isinstance(schema, dict) else {}
    parameters = shown.get("parameters") or {"type": "object", "properties": {}}
    description = str(shown.get("description") or tool.get("description") or "")
    try:
        content = check_content(
            open_kind("tool_definition"),
            {"name": name, "description": description, "parameters": parameters},
        )
        called = plain_name(name, "tool")
        check_name("tool_definition", called)
    except InvalidContent as error:
        state.say(f"left out: the tool {name!r}: {error.message}")
        return ""
    known = state.artifacts.get(("tool_definition", called))
    if known is not None and known.versions[0].digest == content_hash(canonical_json(content)):
        return called
    called = state.free_name("tool_definition", called)
    source = tool.get("source_code")
    evidence: JsonValue = None
    if isinstance(source, str) and source:
        evidence = {
            "source_type": str(tool.get("source_type") or ""),
            "source_sha256": content_hash(source.encode("utf-8", "surrogatepass")),
            "source_code": redact_text(source) if len(source) <= _MAX_SOURCE_CHARACTERS else None,
        }
        if redact_text(source) != source:
            state.say(f"changed: the source of the tool {name!r} held what looks like a secret")
    state.add("tool_definition", called, content, description=description, evidence=evidence)
    state.say(
        f"taken: the definition of the tool {name!r}; its source is kept to read and never run: "
        "put it behind a tool server to use it"
    )
    return called


def _messages(
    state: _Conversion, agent: Mapping[str, JsonValue], name: str
) -> dict[str, JsonValue]:
    """The conversation as JSON lines, secrets masked; the newest where all would be too long."""
    lines: list[str] = []
    size = 0
    messages = _list(agent, "messages")
    for message in reversed(messages):
        found = _mapping(message, "a message")
        line = json.dumps(redact(_plain_message(found)), ensure_ascii=True)
        size += len(line) + 1
        if size > _MAX_MESSAGES_BYTES:
            break
        lines.append(line)
    if not messages:
        return {}
    left = len(messages) - len(lines)
    state.say(
        f"taken: {len(lines)} messages of {name!r} as evidence, in JSON lines"
        + (f"; the oldest {left} are left out: evidence is bounded" if left else "")
    )
    joined = "".join(line + "\n" for line in reversed(lines))
    return {"messages": len(messages), "messages_jsonl": joined}


def _plain_message(message: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Role, text, calls and moment of a message, in the words of our trajectories."""
    content = message.get("content", message.get("text"))
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "\n".join(part for part in parts if isinstance(part, str))
    plain: dict[str, JsonValue] = {"role": message.get("role"), "content": content or ""}
    for key in ("name", "tool_calls", "tool_call_id", "created_at"):
        if message.get(key):
            plain[key] = message[key]
    return plain


def _mapping(value: JsonValue, what: str) -> Mapping[str, JsonValue]:
    if not isinstance(value, dict):
        raise InvalidContent(
            f"{what} is {short(repr(value), 60)}, not an object; this is no agent file."
        )
    return value


def _text(value: Mapping[str, JsonValue], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise InvalidContent(f"the field {key!r} is {short(repr(found), 60)}; a text is needed.")
    return found


def _list(value: Mapping[str, JsonValue], key: str) -> list[JsonValue]:
    found = value.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise InvalidContent(f"the field {key!r} is {short(repr(found), 60)}; a list is needed.")
    return found


def _by_id(value: JsonValue, what: str) -> dict[str, Mapping[str, JsonValue]]:
    entries: Iterable[JsonValue] = value if isinstance(value, list) else ()
    found: dict[str, Mapping[str, JsonValue]] = {}
    for entry in entries:
        one = _mapping(entry, what)
        key = one.get("id")
        if key is None:
            continue  # the older form has no ids
        if str(key) in found:
            raise InvalidContent(f"two of the {what} have the id {key!r}.")
        found[str(key)] = one
    return found


def _count(value: JsonValue) -> str:
    return f" ({len(value)})" if isinstance(value, list | dict) else ""
