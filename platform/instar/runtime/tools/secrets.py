"""Secrets of tool servers: kept in the store, named in registrations, filled in at the start.

A registration holds ``${secret:<id>}``. Values are looked up when a server is about to start, and
nowhere else: production's in production, in rollouts only those that are meant for rollouts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from sqlalchemy.ext.asyncio import AsyncSession

from instar.runtime.tools.config import LaunchSpec, TestBinding, ToolServerConfig
from instar.runtime.tools.secret_values import FoundSecret, split_secrets
from instar.store.audit import Author
from instar.store.keyring import KeySource
from instar.store.secret_box import SecretUse
from instar.store.secret_refs import find_references, reference_to, replace_references
from instar.store.secrets import (
    NewSecret,
    find_secret,
    free_name,
    put_secret,
    reveal_secrets,
    secret_revisions,
    secrets_by_reference,
)
from instar.store.session import Database
from instar_core.errors import UserError

__all__ = [
    "MovedSecret",
    "SecretReader",
    "SettledServer",
    "StoredSecrets",
    "check_rollout_secrets",
    "fill_spec",
    "references_of",
    "refuse_plain_secrets",
    "settle_secrets",
]

_NO_SECRETS = "Only 'env' and 'args' may refer to secrets."


class SecretReader(Protocol):
    """Where a process that starts tool servers gets the values from."""

    async def revisions(self, ids: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The present revision of each secret."""
        ...

    async def reveal(self, ids: Sequence[str]) -> dict[str, str]:
        """The value of each secret."""
        ...


class StoredSecrets:
    """The secrets of one project, for one use.

    Args:
        db: The database.
        project_id: The project.
        keys: The keyring.
        use: ``production``, or ``rollouts``, where production's are refused.
    """

    def __init__(self, db: Database, project_id: str, keys: KeySource, use: SecretUse) -> None:
        self._db = db
        self._project_id = project_id
        self._keys = keys
        self._use: SecretUse = use

    async def revisions(self, ids: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """The present revision of each secret."""
        async with self._db.transaction(self._project_id) as session:
            return await secret_revisions(session, self._project_id, ids)

    async def reveal(self, ids: Sequence[str]) -> dict[str, str]:
        """The value of each secret; masked in this process from then on.

        Raises:
            UserError: If one does not exist any more.
            PermissionDenied: If one is for production and this is a rollout.
            PrerequisiteError: If the key of one is missing.
        """
        async with self._db.transaction(self._project_id) as session:
            return await reveal_secrets(session, self._project_id, ids, self._keys, self._use)


def references_of(config: ToolServerConfig, binding: TestBinding | None = None) -> list[str]:
    """The secrets that the live server, or its copy under a binding, is started with."""
    source = config if binding is None else binding
    return find_references([source.env, list(source.args)])


async def fill_spec(server: str, spec: LaunchSpec, secrets: SecretReader | None) -> LaunchSpec:
    """What is started, with the values in it. The result lives no longer than the start.

    Raises:
        UserError: If it names secrets that do not exist, or that cannot be read here.
    """
    ids = find_references([spec.env, list(spec.args)])
    if not ids:
        return spec
    if secrets is None:
        raise UserError(
            f"The tool server {server!r} refers to secrets, and there is no store to read them "
            "from here."
        )
    try:
        values = await secrets.reveal(ids)
    except UserError as error:
        # The same kind of error, with the server's name in front.
        raise type(error)(
            f"The tool server {server!r} cannot be started: {error.message}", remedy=error.remedy
        ) from error
    env = replace_references(spec.env, values.__getitem__)
    args = tuple(replace_references(list(spec.args), values.__getitem__))
    return spec.model_copy(update={"env": env, "args": args})


class MovedSecret(NamedTuple):
    """A value that was taken out of a registration, and the secret that keeps it now."""

    place: str
    name: str
    id: str


class SettledServer(NamedTuple):
    """A registration as it is stored: references in the place of secrets."""

    config: ToolServerConfig
    moved: list[MovedSecret]
    notices: list[str]


async def settle_secrets(
    session: AsyncSession,
    project_id: str,
    config: ToolServerConfig,
    keys: KeySource,
    by: Author,
    before: ToolServerConfig | None = None,
) -> SettledServer:
    """Moves secret values of a registration into the store, and checks what it refers to.

    Args:
        session: A transaction of the project.
        project_id: The project.
        config: The registration as it was sent; it may refer to secrets by id or by name.
        keys: The keyring.
        by: Who registers.
        before: The registration that it replaces: the same value under the same name stays the
            same secret.

    Raises:
        UserError: If it refers to what does not exist, to production's secrets in a test binding,
            or to secrets where none can be.
        PrerequisiteError: If a value must be kept and there is no usable key.
    """
    left, found = split_secrets(config)
    own = set(find_references(before.model_dump(mode="json"))) if before is not None else set()
    moved: list[MovedSecret] = []
    ids: dict[str, str] = {}
    for number, one in enumerate(found):
        kept = await _keep(session, project_id, one, keys, by, own)
        ids[f"@{number}"] = kept.id
        moved.append(kept)
    dumped = replace_references(
        left.model_dump(mode="json"), lambda name: reference_to(ids.get(name, name))
    )
    settled = await _checked(session, project_id, ToolServerConfig.model_validate(dumped))
    return SettledServer(settled, moved, _notices(settled))


async def _keep(
    session: AsyncSession,
    project_id: str,
    one: FoundSecret,
    keys: KeySource,
    by: Author,
    own: set[str],
) -> MovedSecret:
    """Keeps a found value: as a revision of the server's own secret of that name, or as a new."""
    row = await find_secret(session, project_id, one.name)
    if row is not None and row.id in own and row.use == one.use:
        values = await reveal_secrets(session, project_id, [row.id], keys, one.use)
        if values[row.id] == one.value:
            return MovedSecret(one.place, row.name, row.id)
        name = row.name
    else:
        name = await free_name(session, project_id, one.name)
    new = NewSecret(name, one.value, one.use)
    row = await put_secret(session, project_id, new, keys, by)
    return MovedSecret(one.place, row.name, row.id)


async def _checked(
    session: AsyncSession, project_id: str, config: ToolServerConfig
) -> ToolServerConfig:
    """The registration with ids for names, once every reference in it is sound."""
    dumped = config.model_dump(mode="json")
    wanted = find_references(dumped)
    if not wanted:
        return config
    allowed = set(references_of(config))
    for_tests: set[str] = set()
    for binding in config.test_bindings.values():
        for_tests |= set(references_of(config, binding))
    odd = [name for name in wanted if name not in allowed | for_tests] or _misplaced(config)
    if odd:
        raise UserError(
            f"The tool server {config.name!r} refers to the secret {odd[0]!r} where none can be.",
            remedy=_NO_SECRETS,
        )
    rows = await secrets_by_reference(session, project_id, wanted)
    closed = {name for name, row in rows.items() if row.use != "rollouts"}
    _refuse_in_tests(config, for_tests & closed)
    if config.effect_free and closed.intersection(find_references(list(config.args))):
        raise UserError(
            f"The tool server {config.name!r} is declared free of effects, so rollouts start it "
            "with its arguments, and one of them is a secret for production.",
            remedy="Pass the secret in the environment, which rollouts leave out, or give the "
            "server a test binding.",
        )
    ids = {name: row.id for name, row in rows.items()}
    filled = replace_references(dumped, lambda name: reference_to(ids[name]))
    return ToolServerConfig.model_validate(filled)


def _misplaced(config: ToolServerConfig) -> list[str]:
    """References in places that are no environment and no argument."""
    rest = config.model_dump(mode="json", exclude={"env", "args", "test_bindings"})
    bindings = [
        binding.model_dump(mode="json", exclude={"env", "args"})
        for binding in config.test_bindings.values()
    ]
    return find_references([rest, *bindings])


def _refuse_in_tests(config: ToolServerConfig, closed: set[str]) -> None:
    if closed:
        raise UserError(
            f"A test binding of the tool server {config.name!r} refers to {min(closed)!r}, which "
            "is a secret for production; those are never used in rollouts.",
            remedy="Set one for tests (`instar secret set NAME --use rollouts`) and refer to it.",
        )


def _notices(config: ToolServerConfig) -> list[str]:
    if not find_references(list(config.args)):
        return []
    return [
        "A secret among the arguments can be seen in this machine's list of processes while the "
        "server runs. Pass it in the environment if the server allows that."
    ]


async def check_rollout_secrets(
    session: AsyncSession,
    project_id: str,
    servers: Iterable[ToolServerConfig],
    bindings: dict[str, str | TestBinding],
) -> None:
    """Refuses before anything is spent what a rollout would be refused later.

    Raises:
        UserError: If a binding that will be used refers to no secret, or to one for production.
    """
    for config in servers:
        named = bindings.get(config.name)
        binding = config.test_bindings.get(named) if isinstance(named, str) else named
        if binding is None:
            continue
        wanted = references_of(config, binding)
        rows = await secrets_by_reference(session, project_id, wanted)
        _refuse_in_tests(config, {name for name, row in rows.items() if row.use != "rollouts"})


def refuse_plain_secrets(server: str, binding: TestBinding) -> None:
    """Refuses a test binding that brings secret values along, as one inside a task set may.

    Raises:
        UserError: Naming the place; a task set is a version, which keeps what is in it for ever.
    """
    config = ToolServerConfig(name="binding", command="-", test_bindings={"b": binding})
    _, found = split_secrets(config)
    if found:
        place = found[0].place.removeprefix("test binding b: ")
        raise UserError(
            f"The test binding of {server!r} holds what looks like a secret ({place}).",
            remedy="Set it with `instar secret set NAME --use rollouts` and write "
            "${secret:NAME} in its place.",
        )
