"""``instar selfcheck``: options, JSON, exit codes."""

from __future__ import annotations

import json

import pytest

from instar.cli.selfcheck import main
from instar_core.errors import UserError


def test_json_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["null", "--evolver", "bootstrap", "--runs", "2", "--seed", "3"]
    assert main([*arguments, "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["evolvers"]] == ["bootstrap"]
    assert report["seed"] == 3


def test_words_name_rates_and_controls(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lottery", "--evolver", "tf_grpo", "--runs", "2", "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert "tf_grpo" in said
    assert "argmax" in said


def test_an_unknown_world_is_a_mistake_told_in_words() -> None:
    with pytest.raises(UserError, match="planted"):
        main(["paradise"])


def test_a_wrong_option_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["null", "--nightly"]) == 2
    assert "--nightly" in capsys.readouterr().err
