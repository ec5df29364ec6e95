"""A model's name leads to one endpoint, or to an error that says what is allowed (S28)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from instar.models.embedder import open_embedder
from instar.models.endpoints import require_key, resolve_endpoint
from instar.models.litellm_client import LitellmClient
from instar.models.local_client import LocalClient
from instar.models.registry import check_model, open_model
from instar.settings import Settings
from instar_core.errors import PrerequisiteError, UserError


@pytest.mark.parametrize(
    "name", ["gpt-4o", "", "openai/", "/x", "nobody/model", "openai/a b", "local", "a" * 300]
)
def test_unknown_names_are_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(UserError, match=r"local/smollm2-135m-instruct") as caught:
        open_model(name, Settings())
    assert repr(name) in str(caught.value)


def test_unknown_local_model_names_the_one_that_is_served() -> None:
    with pytest.raises(UserError, match=r"'local/llama'.*local/smollm2-135m-instruct"):
        open_model("local/llama", Settings())


def test_each_kind_opens_its_client() -> None:
    settings = Settings()
    assert isinstance(open_model("local/smollm2-135m-instruct", settings), LocalClient)
    assert isinstance(open_model("openai/gpt-4o", settings), LitellmClient)
    assert isinstance(open_model("hosted_vllm/mine", settings), LitellmClient)


def test_the_engines_address_comes_from_its_settings() -> None:
    settings = Settings()
    settings.engine.port = 9911
    endpoint = resolve_endpoint("local/smollm2-135m-instruct", settings)
    assert endpoint.api_base == "http://127.0.0.1:9911"


def test_s28_address_by_name_then_provider_then_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings()
    monkeypatch.setenv("OPENAI_API_BASE", "http://env/v1")
    assert resolve_endpoint("openai/m", settings).api_base == "http://env/v1"
    settings.models.api_base["openai"] = "http://provider/v1"
    assert resolve_endpoint("openai/m", settings).api_base == "http://provider/v1"
    settings.models.api_base["openai/m"] = "http://name/v1"
    assert resolve_endpoint("openai/m", settings).api_base == "http://name/v1"


def test_credentials_in_an_address_are_not_shown() -> None:
    settings = Settings()
    settings.models.api_base["openai"] = "http://me:hunter22@host/v1"
    assert "hunter22" not in resolve_endpoint("openai/m", settings).shown


def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(PrerequisiteError, match="OPENAI_API_KEY"):
        require_key(resolve_endpoint("openai/gpt-4o", Settings()))
    with pytest.raises(PrerequisiteError, match="OPENAI_API_KEY"):
        asyncio.run(check_model("openai/gpt-4o", Settings()))


def test_an_engine_that_is_away_is_named_with_the_remedy(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        settings = Settings(data_dir=tmp_path)
        settings.engine.port = taken.getsockname()[1]
        with pytest.raises(PrerequisiteError, match=r"does not answer.*instar up"):
            asyncio.run(check_model("local/smollm2-135m-instruct", settings))


def test_embedder_by_name() -> None:
    settings = Settings()
    assert open_embedder(settings).digest.startswith("all-minilm-l6-v2@")
    settings.models.embedder = "openai/text-embedding-3-small"
    with pytest.raises(UserError, match="local/all-minilm-l6-v2"):
        open_embedder(settings)


@pytest.mark.parametrize(
    "name",
    ["huggingface/https://elsewhere.example/x", "huggingface/http://10.0.0.1/x", "openai//x"],
)
def test_a16_no_address_passes_for_a_models_name(name: str) -> None:
    # litellm's client of that provider would send its key there.
    with pytest.raises(UserError, match="holds an address where a model's name belongs"):
        resolve_endpoint(name, Settings())
