"""Verifying: one answer to whether a project's audit trail can be trusted, and if not, from where.

What cannot be seen: a change to rows that no checkpoint has yet (``unsealed``, the last minute)
whose chain was computed anew; a row that was back-dated by less than an hour before it was sealed;
the moments and ids of rows that revision 0001 wrote, whose links do not cover them; and a database
that was set back together with every copy of its checkpoints (whoever has the signing key as well
can forge new ones). A copy on another machine, written there and not only kept there, closes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field

from instar.audit.chain import BadRow, walk_chain
from instar.audit.checkpoint import Checkpoint
from instar.audit.fold import Copy, Fold
from instar.audit.keys import (
    PublicKey,
    audit_dir,
    listed_keys,
    load_signer,
    read_public_key,
    trusted_keys,
)
from instar.audit.outside import OutsideCopy
from instar.settings import Settings
from instar.store.audit import ADMIN
from instar.store.checkpoints import read_heads, read_installation
from instar.store.session import Database
from instar_core.base import Frozen
from instar_core.errors import PrerequisiteError

__all__ = ["AuditReport", "Evidence", "verify_project"]

_MORE = 20


class AuditReport(Frozen):
    """Whether the audit trail holds."""

    ok: bool
    rows: int = Field(description="rows read, of all streams")
    checkpoints: int = Field(description="signed checkpoints in the database")
    streams: int = Field(description="streams that have rows")
    unsealed: int = Field(description="rows that no checkpoint has yet")
    outside: int = Field(description="checkpoints in the copy outside the database")
    bad: BadRow | None = Field(
        default=None, description="the first row or checkpoint that does not hold"
    )
    more: tuple[BadRow, ...] = Field(default=(), description="what else does not hold")
    notes: tuple[str, ...] = Field(default=(), description="what a person ought to look at")


class Evidence(Frozen):
    """What the trail is held against besides itself."""

    folder: Path | None = Field(default=None, description="folder of the copies; None: no copy")
    trusted: tuple[str, ...] = Field(default=(), description="public keys as PEM")
    given: tuple[Checkpoint, ...] = Field(
        default=(), description="checkpoints of a copy kept elsewhere, in order"
    )

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        public_keys: Sequence[str] = (),
        given: Iterable[Checkpoint] = (),
    ) -> Evidence:
        """The evidence of this installation.

        Without given keys its own signing key is trusted (where only the list of public keys is at
        hand, those).

        Args:
            settings: Where copies and keys lie.
            public_keys: PEM texts that alone are trusted, with what they vouch for.
            given: Checkpoints of a copy kept elsewhere.

        Raises:
            UserError: One of the texts is no public key.
        """
        folder = audit_dir(settings)
        keys = list(public_keys)
        if not keys:
            try:
                keys = [load_signer(settings).public.pem]
            except PrerequisiteError:
                keys = list(listed_keys(folder).values())
        return cls(
            folder=folder,
            trusted=tuple(read_public_key(pem).pem for pem in keys),
            given=tuple(given),
        )

    def keys(self) -> dict[str, PublicKey]:
        """Fingerprint → key of everything that is trusted."""
        anchors = [read_public_key(pem) for pem in self.trusted]
        if self.folder is None:
            return {key.id: key for key in anchors}
        return trusted_keys(self.folder, anchors)

    def copies(self, project_id: str) -> list[Copy]:
        """The copies of a project's checkpoints, as they are now, however much is added later."""
        found: list[Copy] = []
        if self.folder is not None:
            copy = OutsideCopy(self.folder, project_id)
            found.append(Copy("the outside copy", copy.read(copy.size()), whole=True))
        if self.given:
            found.append(Copy("the given copy", iter(self.given), whole=False))
        return found


async def verify_project(db: Database, project_id: str, evidence: Evidence) -> AuditReport:
    """Verifies rows, links, heads, checkpoints and copies of one project, as of one moment.

    Args:
        db: The database; nothing is written.
        project_id: The project.
        evidence: Copies and trusted keys.

    Raises:
        StoreError: The database is away, or a copy cannot be read.
    """
    # Before the snapshot: a checkpoint goes to the database first, so whatever the copy has now the
    # snapshot has too, and one that is sealed meanwhile does not look like one that was lost.
    copies = evidence.copies(project_id)
    async with db.snapshot(project_id) as session:
        heads = await read_heads(session, project_id)
        walk = await walk_chain(session, project_id, heads)
        fold = Fold(
            session,
            project_id,
            await read_installation(session),
            evidence.keys(),
            copies,
        )
        await fold.run()
        await fold.check_sealed()
        unsealed = await fold.check_unsealed(heads)
    found = _in_order(walk.bad, fold.rows) + fold.problems
    return AuditReport(
        ok=not found,
        rows=walk.rows,
        checkpoints=fold.count,
        streams=walk.streams,
        unsealed=unsealed,
        outside=fold.copies[0].count if fold.copies and fold.copies[0].whole else 0,
        bad=found[0] if found else None,
        more=tuple(found[1 : 1 + _MORE]),
        notes=_notes(fold),
    )


def _notes(fold: Fold) -> tuple[str, ...]:
    """What is no proof of anything, and still should be looked at."""
    if not fold.overdue:
        return ()
    since = f"since {fold.overdue[:19]}Z"
    return (
        f"rows are not sealed {since}: the reconciler does not write checkpoints (see its log), or "
        "checkpoints and their copy were taken away",
    )


def _in_order(chain: dict[str, BadRow], sealed: dict[str, BadRow]) -> list[BadRow]:
    """The first bad row of each stream; the admin stream first, then runs, oldest first."""
    streams = sorted(chain.keys() | sealed.keys(), key=lambda name: (name != ADMIN, name))
    found: list[BadRow] = []
    for stream in streams:
        ones = [one[stream] for one in (sealed, chain) if stream in one]
        # What the chain itself says is more exact where both name the same row.
        found.append(min(reversed(ones), key=lambda bad: bad.seq or 0))
    return found
