"""The demo's plan: which agent, which tasks, which evolver, and how many rollouts."""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from instar_core.base import content_hash
from instar_core.errors import PrerequisiteError, UserError
from instar_evolvers.registry import list_evolvers

__all__ = ["LOCAL_MODEL", "Plan", "fit", "make_plan", "parse_options"]

LOCAL_MODEL = "local/smollm2-135m-instruct"
GYM = "reasoning_gym:"
RESERVE = 1.3
"""Demonstrations make prompts longer than the probes' were; the time is planned for that."""
LEAST_PAIRS, LEAST_VALIDATION, LEAST_SEARCH = 20, 16, 32
GYM_OPTIONS: dict[str, dict[str, int]] = {
    "letter_counting": {"min_words": 4, "max_words": 8},
    "chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything the demo is about to do, decided before anything is started.

    Attributes:
        agent: Name of the agent in the project.
        candidate: Its first version: components and harness as JSON.
        task_set: Name of the task set.
        jsonl: Its tasks.
        evolution: The body that asks for the run.
        server: The tool server to register, if the agent has tools.
        live_db: The live desk's database, if there is one.
        fresh: Inputs that are in no split, to call the promoted agent with.
    """

    agent: str
    candidate: dict[str, Any]
    task_set: str
    jsonl: str
    evolution: dict[str, Any]
    model: str
    server: dict[str, Any] | None = None
    live_db: Path | None = None
    fresh: list[dict[str, Any]] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Names the plan: the same words of the command line on the same tasks make the same key.

        It is the idempotency key of the run, and the name under which the fitted sizes are kept.
        """
        about = [self.agent, self.candidate["harness"], self.jsonl, self.evolution]
        return "demo-" + content_hash(json.loads(json.dumps(about)))[:40]


def fit(evolution: dict[str, Any], quote: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The run's body with sizes that fit into the time at the measured seconds per rollout.

    The sealed test keeps its pairs as long as it can; validation and search yield first.

    Args:
        evolution: The body as planned.
        quote: Its quote without a limit on time.
        seconds: Wall time that the run may take.
    """
    per_rollout = max(1e-4, float(quote["seconds_per_rollout"])) * RESERVE
    affordable = int(seconds / per_rollout)
    validation, pairs = evolution["validation_tasks"], evolution["acceptance"]["max_pairs"]
    search = int(quote["assumptions"]["search_rollouts"])
    if validation + search + 2 * pairs > affordable:
        pairs = max(LEAST_PAIRS, min(pairs, affordable // 6))
        rest = affordable - 2 * pairs
        validation = max(LEAST_VALIDATION, min(validation, rest // 4))
        search = max(LEAST_SEARCH, min(search, rest - validation))
    fitted = json.loads(json.dumps(evolution))
    fitted["validation_tasks"], fitted["acceptance"]["max_pairs"] = validation, pairs
    if "search_rollouts" in fitted["evolver_config"]:
        fitted["evolver_config"]["search_rollouts"] = search
    fitted["limit"] = {"wall_s": seconds}
    return dict(fitted)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """The demo's options.

    Raises:
        SystemExit: For ``--help`` and for options that do not exist.
    """
    parser = argparse.ArgumentParser(
        prog="instar demo", description="Evolve the sample agent and promote a real gain."
    )
    parser.add_argument(
        "--tasks",
        default="support_desk",
        help="support_desk, or reasoning_gym:<dataset> for tasks that nobody here wrote",
    )
    parser.add_argument("--model", default=LOCAL_MODEL, help="local/…, openai/…, anthropic/… …")
    parser.add_argument("--evolver", default="bootstrap", help="bootstrap or tf_grpo")
    parser.add_argument("--proposer", default="", help="model that proposes; else the agent's own")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run's random choices")
    parser.add_argument("--search", type=int, default=150, help="rollouts of the search")
    parser.add_argument("--validation", type=int, default=54, help="validation tasks at most")
    parser.add_argument("--pairs", type=int, default=40, help="pairs of the sealed test at most")
    parser.add_argument("--seconds", type=float, default=540.0, help="wall time of the run at most")
    parser.add_argument("--json", action="store_true", help="print one JSON document at the end")
    return parser.parse_args(arguments)


def make_plan(options: argparse.Namespace, data_dir: Path) -> Plan:
    """The plan that the options ask for.

    Raises:
        UserError: Unknown tasks, or numbers that make no sense.
        PrerequisiteError: The sample is not beside this installation.
    """
    for name, least in (("search", 8), ("validation", 4), ("pairs", 20)):
        value = getattr(options, name)
        if value < least:
            raise UserError(f"--{name} {value} is too small.", remedy=f"Use at least {least}.")
    known = list_evolvers()
    if options.evolver not in known:
        raise UserError(
            f"--evolver {options.evolver!r} is unknown.", remedy=f"Use {' or '.join(known)}."
        )
    if options.tasks == "support_desk":
        return _desk_plan(options, data_dir)
    if options.tasks.startswith(GYM):
        return _gym_plan(options)
    raise UserError(
        f"--tasks {options.tasks!r} is unknown.",
        remedy="Use support_desk or reasoning_gym:<dataset>.",
    )


def _desk_plan(options: argparse.Namespace, data_dir: Path) -> Plan:
    _reach_examples()
    from examples.support_desk.agent import AGENT_NAME, desk_server, support_agent
    from examples.support_desk.build import TASK_FILE, fresh_tickets

    local = options.model.startswith("local/")
    lines = TASK_FILE.read_text(encoding="utf-8").splitlines()
    if local:
        lines = [line for line in lines if '"slice": "several_steps"' not in line]
    live_db = data_dir / "demo" / "desk.db"
    agent = AGENT_NAME if options.model == LOCAL_MODEL else f"{AGENT_NAME}-{_slug(options.model)}"
    task_set = "support_desk_one_call" if local else "support_desk"
    return Plan(
        agent=agent,
        candidate=support_agent(options.model).model_dump(
            mode="json", include={"components", "harness"}
        ),
        task_set=task_set,
        jsonl="\n".join(lines) + "\n",
        evolution=_evolution(options, agent, task_set),
        model=options.model,
        server=desk_server(live_db),
        live_db=live_db,
        fresh=fresh_tickets(),
    )


def _gym_plan(options: argparse.Namespace) -> Plan:
    from instar.rollouts.reasoning_gym_source import reasoning_gym_tasks
    from instar_core.candidates import Candidate, Component, Harness, Limits
    from instar_core.messages import Sampling

    dataset, _, query = options.tasks.removeprefix(GYM).partition("?")
    # Other parameters draw other tasks, which need a name of their own.
    task_set = _slug(f"{dataset}-{query}")
    if not query:
        sizes = GYM_OPTIONS.get(dataset, {})
        query = "&".join([f"{name}={value}" for name, value in sizes.items()] + ["size=400"])
    tasks = reasoning_gym_tasks(f"{GYM}{dataset}?{query}").tasks
    agent = f"{_slug(dataset)}-{_slug(options.model)}"
    candidate = Candidate(
        components={
            "instructions": Component(
                kind="instructions", content="Answer with the result alone.", trainable=False
            ),
            "lessons": Component(kind="lessons", content={"entries": []}, owner="job"),
            "demonstrations": Component(
                kind="demonstrations",
                content={"pool": [], "retrieval": "fixed", "k": 0, "order": []},
                owner="job",
            ),
        },
        harness=Harness(
            model=options.model,
            sampling=Sampling(max_tokens=24 if options.model.startswith("local/") else 400),
            limits=Limits(max_steps=1),
        ),
    )
    return Plan(
        agent=agent,
        candidate=candidate.model_dump(mode="json", include={"components", "harness"}),
        task_set=task_set,
        jsonl="\n".join(json.dumps(task.model_dump(mode="json")) for task in tasks) + "\n",
        evolution=_evolution(options, agent, task_set),
        model=options.model,
        fresh=[],
    )


def _evolution(options: argparse.Namespace, agent: str, task_set: str) -> dict[str, Any]:
    """The body that asks for a run: what it starts from, and its limits."""
    config = {"search_rollouts": options.search} if options.evolver == "bootstrap" else {}
    body: dict[str, Any] = {
        "agent": agent,
        "label": "production",
        "task_set": task_set,
        "evolver": options.evolver,
        "evolver_config": config,
        "acceptance": {"max_pairs": options.pairs},
        "validation_tasks": options.validation,
        "seed": options.seed,
    }
    if options.proposer:
        body["model"] = options.proposer
    return body


def _reach_examples() -> None:
    root = Path(__file__).resolve().parents[4]
    if not (root / "examples" / "support_desk" / "tickets.jsonl").exists():
        raise PrerequisiteError(
            "the sample is not beside this installation.",
            remedy="Clone the repository and run `make demo` in it, or use "
            "--tasks reasoning_gym:letter_counting.",
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))


def _slug(text: str) -> str:
    """A name made of a text, with nothing left out: two providers' models stay two agents."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
