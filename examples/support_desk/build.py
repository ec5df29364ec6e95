"""Builds ``tickets.jsonl``: the task set of the support desk, the same bytes on every machine.

Run ``python -m examples.support_desk.build`` after changing phrasings or frames; a test asserts
that the committed file is what this module builds.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from examples.support_desk.phrasings import PHRASINGS, QUEUES

__all__ = [
    "CUSTOMERS",
    "SCHEMA",
    "TASK_FILE",
    "build_lines",
    "build_tickets",
    "fresh_tickets",
    "test_binding",
]

HERE = Path(__file__).parent
TASK_FILE = HERE / "tickets.jsonl"
FRAMES = (
    "{p}",
    "Hello, {p} Thanks, {name}",
    "Dear team, {p} Kind regards, {name}",
    "Hi! {p} Please help. {name}",
)
NAMES = ("Ada", "Bruno", "Chen", "Dora", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jana")
PLANS = ("basic", "plus", "gold")
CUSTOMERS = tuple(
    {"id": f"C-{10 + i}", "name": name, "plan": PLANS[i % 3]} for i, name in enumerate(NAMES)
)
PRIORITY_OF_PLAN = {"basic": "low", "plus": "normal", "gold": "urgent"}
TRAIN, VALIDATION = 24, 10
FRAMES_PER_PHRASING = 2
SEED = 20261130

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS customer (id TEXT PRIMARY KEY, name TEXT NOT NULL, "
    "plan TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ticket (id TEXT PRIMARY KEY, text TEXT NOT NULL, "
    "customer TEXT NOT NULL, queue TEXT, priority TEXT)",
)


def build_tickets() -> list[dict[str, Any]]:
    """All tickets with their text, customer, right queue, split and group, in a shuffled order.

    Per queue 24 phrasings train, 10 validate and the rest are sealed; each comes in two frames.
    Some phrasings of every split also come as a ticket of several steps.
    """
    rng = Random(SEED)
    tickets: list[dict[str, Any]] = []
    for queue in QUEUES:
        phrasings = list(enumerate(PHRASINGS[queue]))
        rng.shuffle(phrasings)
        for rank, (index, phrasing) in enumerate(phrasings):
            split = (
                "train" if rank < TRAIN else "validation" if rank < TRAIN + VALIDATION else "sealed"
            )
            frames = rng.sample(FRAMES, FRAMES_PER_PHRASING)
            for number, frame in enumerate(frames):
                customer = rng.choice(CUSTOMERS)
                tickets.append(
                    {
                        "text": frame.format(p=phrasing, name=customer["name"]),
                        "customer": customer,
                        "queue": queue,
                        "split": split,
                        "group": f"{queue}-{index:02d}",
                        "several": number == 1 and rank % 5 == 0,
                    }
                )
    rng.shuffle(tickets)
    for number, ticket in enumerate(tickets):
        ticket["id"] = f"T-{100 + number}"
    return tickets


def fresh_tickets() -> list[dict[str, Any]]:
    """Tickets that are in no split, for the live desk: new sentences, one per queue."""
    texts = {
        "harbor": "Hello, you took my payment for the summer course twice, please send one back.",
        "lantern": "Good morning, since the update I cannot log in to the app on my phone.",
        "anchor": "Hi, the courier delivered a parcel to me that belongs to somebody else.",
    }
    return [
        {"id": f"T-{900 + number}", "customer": CUSTOMERS[number], "queue": queue, "text": text}
        for number, (queue, text) in enumerate(texts.items())
    ]


def test_binding() -> dict[str, Any]:
    """The sandbox copy of the desk: an empty SQLite file per slot, filled from the task."""
    statements: list[dict[str, Any]] = [{"sql": sql} for sql in SCHEMA]
    statements.append(
        {
            "sql": "INSERT INTO customer (id, name, plan) VALUES (:id, :name, :plan)",
            "for_each": "customers",
        }
    )
    statements.append(
        {
            "sql": "INSERT INTO ticket (id, text, customer) VALUES (:id, :text, :customer)",
            "for_each": "tickets",
        }
    )
    return {
        "args": ["{root}/server.py"],
        "env": {"DESK_DB": "{slot_dir}/desk.db"},
        "setup": [{"kind": "sqlite", "path": "desk.db", "statements": statements}],
        "state": {
            "kind": "sqlite",
            "path": "desk.db",
            "queries": {"tickets": "SELECT id, queue, priority FROM ticket ORDER BY id"},
        },
    }


def _task(ticket: dict[str, Any]) -> dict[str, Any]:
    customer = ticket["customer"]
    several = ticket["several"]
    priority = PRIORITY_OF_PLAN[customer["plan"]] if several else None
    actions: list[dict[str, Any]] = []
    text = f"Ticket {ticket['id']}: {ticket['text']}"
    if several:
        text += f" (Customer {customer['id']}. Also set the priority of the customer's plan.)"
        actions.append({"name": "look_up_customer", "arguments": {"customer": customer["id"]}})
    actions.append(
        {
            "name": "assign_queue",
            "arguments": {"ticket": ticket["id"], "queue": ticket["queue"]},
        }
    )
    if several:
        actions.append(
            {
                "name": "set_priority",
                "arguments": {"ticket": ticket["id"], "priority": priority},
            }
        )
    return {
        "id": ticket["id"],
        "input": text,
        "split": ticket["split"],
        "group": ticket["group"],
        "slice": "several_steps" if several else "one_call",
        "environment": {
            "customers": [customer],
            "tickets": [{"id": ticket["id"], "text": ticket["text"], "customer": customer["id"]}],
        },
        "verifier": {
            "name": "state",
            "config": {
                "expect": {
                    "tickets": [
                        {"id": ticket["id"], "queue": ticket["queue"], "priority": priority}
                    ]
                }
            },
        },
        "reference_actions": actions,
    }


def build_lines() -> list[str]:
    """The lines of the task file: a header that names the test binding, then one task a line."""
    header = {"task_set": {"name": "support_desk", "bindings": {"desk": "sandbox"}}}
    tasks = [_task(ticket) for ticket in build_tickets()]
    return [json.dumps(value, ensure_ascii=False) for value in (header, *tasks)]


def main() -> None:
    """Writes the task file."""
    TASK_FILE.write_text("\n".join(build_lines()) + "\n", encoding="utf-8")
    print(f"{TASK_FILE.name}: {len(build_lines()) - 1} tickets")


if __name__ == "__main__":
    main()
