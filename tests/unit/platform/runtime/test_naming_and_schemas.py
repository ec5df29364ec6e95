"""Exposed names, listings and argument schemas."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instar.runtime.tools.listing import Catalogue, ListedTool, Listing, check_listing
from instar.runtime.tools.naming import exposed_names
from instar.runtime.tools.results import cap_text
from instar_core.candidates import ToolServer
from instar_core.errors import UserError
from instar_core.json_schema import argument_problem, canonical_schema, schema_problem

RULE = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")


def tool(name: str, schema: Any = None, description: str = "") -> ListedTool:
    return ListedTool(name, description, {"type": "object"} if schema is None else schema)


def test_plain_names_stay_and_odd_ones_get_a_hash() -> None:
    names = exposed_names([("desk", "assign"), ("desk", "straße.öffnen"), ("desk", "x" * 80)])
    assert names["desk", "assign"] == "assign"
    assert re.fullmatch(r"stra_e__ffnen_[0-9a-f]{8}", names["desk", "straße.öffnen"])
    assert len(names["desk", "x" * 80]) == 64


def test_one_name_on_two_servers_is_told_apart() -> None:
    names = exposed_names([("a", "read"), ("b", "read")])
    assert names["a", "read"] != names["b", "read"]
    assert all(name.startswith("read_") for name in names.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c.d"]),
            st.text(st.sampled_from("ab._-é"), max_size=70),
        ),
        max_size=8,
    )
)
def test_s53_names_keep_the_rule_and_never_collide(pairs: list[tuple[str, str]]) -> None:
    names = exposed_names(pairs)
    assert len(set(names.values())) == len(set(pairs))
    assert all(RULE.match(name) for name in names.values())
    assert names == exposed_names(reversed(pairs))


def test_a_plain_name_that_looks_like_a_suffixed_one_gives_way() -> None:
    odd = exposed_names([("s", "a.b")])["s", "a.b"]
    names = exposed_names([("s", "a.b"), ("s", odd)])
    assert len(set(names.values())) == 2


def test_s55_a_doubled_tool_is_rejected_with_a_warning() -> None:
    listing = check_listing("desk", [tool("read", description="first"), tool("read")])
    assert [one.description for one in listing.tools] == ["first"]
    assert "lists the tool 'read' twice" in listing.warnings[0]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "not an object"),
        ([], "not an object"),
        ({"type": "string"}, "'string'"),
        ({"type": "object", "properties": []}, "not an object"),
        ({"type": "object", "properties": {"a": {"type": "thing"}}}, "not valid JSON Schema"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "only references"),
    ],
)
def test_s57_a_bad_schema_quarantines_its_tool_alone(schema: Any, words: str) -> None:
    listing = check_listing("desk", [ListedTool("bad", "", schema), tool("good")])
    assert [one.name for one in listing.tools] == ["good"]
    assert "'bad'" in listing.warnings[0]
    assert words in listing.warnings[0]


def test_deep_schemas_are_refused_without_recursion() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5_000):
        schema = {"type": "object", "properties": {"a": schema}}
    assert "levels" in str(schema_problem(schema))


def test_s59_missing_properties_become_an_empty_object() -> None:
    assert canonical_schema({}) == {"type": "object", "properties": {}}
    assert canonical_schema({"properties": None, "x": 1})["properties"] == {}


def test_arguments_are_checked_against_the_original_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"queue": {"enum": ["harbor"]}, "ticket": {"type": "integer"}},
        "required": ["queue"],
        "additionalProperties": False,
    }
    assert argument_problem(schema, {"queue": "harbor", "ticket": 1}) is None
    assert "queue" in str(argument_problem(schema, {"queue": "blue"}))
    assert "'queue' is a required" in str(argument_problem(schema, {}))
    assert "ticket" in str(argument_problem(schema, {"queue": "harbor", "ticket": "1"}))
    assert "must be an object" in str(argument_problem(schema, ["harbor"]))
    deep: Any = {}
    for _ in range(1_000):
        deep = {"a": deep}
    assert "levels" in str(argument_problem({"type": "object"}, deep))


def test_an_allow_list_offers_only_its_tools_in_its_order() -> None:
    listings = {"desk": Listing((tool("read"), tool("write"), tool("list")))}
    catalogue = Catalogue.build([ToolServer(name="desk", allow=("write", "read"))], listings)
    assert catalogue.names == ("write", "read")
    assert catalogue.find("list") is None
    with pytest.raises(UserError, match="'nope'.*offers 'list', 'read', 'write'"):
        Catalogue.build([ToolServer(name="desk", allow=("nope",))], listings)


def test_descriptions_of_the_agent_replace_the_servers() -> None:
    listings = {"desk": Listing((tool("read", description="old"),))}
    catalogue = Catalogue.build([ToolServer(name="desk")], listings, {"read": "new"})
    assert catalogue.definitions[0].description == "new"


@given(st.text(max_size=400), st.integers(min_value=2, max_value=60))
def test_s81_capped_text_never_splits_a_character(text: str, limit: int) -> None:
    shown, cut = cap_text(text, limit)
    clean = text.encode("utf-8", errors="replace").decode()
    if cut == 0:
        assert shown == clean
    else:
        head, notice, tail = shown.partition("\n[…")
        assert notice
        assert clean.startswith(head)
        assert clean.endswith(tail.rpartition("…]\n")[2])
