"""Adapter: LoRA weights of an open model: its PEFT config, and its files by hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from instar.registry.kinds.base import ModelKind, parse_json_file, pretty_json
from instar_core.base import Frozen, JsonValue, content_hash
from instar_core.errors import InvalidContent
from instar_skills.paths import check_paths

__all__ = ["AdapterContent", "AdapterFile", "AdapterKind", "PeftConfig"]

_CONFIG, _ABOUT = "adapter_config.json", "instar_adapter.json"


class AdapterFile(Frozen):
    """One file of the adapter's folder: the sha256 of its bytes, and how many there are."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class PeftConfig(BaseModel):
    """The fields of PEFT's ``adapter_config.json`` that we read; others are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow")

    peft_type: Literal["LORA", "ADALORA", "LOHA", "LOKR", "IA3", "VERA", "OFT"]
    base_model_name_or_path: str | None = None
    task_type: str | None = None
    r: int | None = Field(default=None, ge=1, le=65_536)
    lora_alpha: float | None = None


class AdapterContent(Frozen):
    """What the adapter is for, how it was made, and which files it consists of.

    The bytes of the files are kept apart, by their hash; this content names them.
    """

    base_model: str = Field(min_length=1)
    base_revision: str = Field(default="", description="commit or sha256 of the base weights")
    config: dict[str, JsonValue] = Field(description="PEFT's adapter_config.json")
    files: dict[str, AdapterFile] = Field(default_factory=dict)
    recipe: str = Field(default="", description="what trained it")
    training_run: str = ""

    @field_validator("config")
    @classmethod
    def _is_peft(cls, config: dict[str, JsonValue]) -> dict[str, JsonValue]:
        PeftConfig.model_validate(config)
        return config

    @model_validator(mode="after")
    def _plain_paths(self) -> AdapterContent:
        try:
            check_paths(self.files)
        except InvalidContent as error:
            raise ValueError(str(error)) from None
        if _CONFIG in self.files or _ABOUT in self.files:
            raise ValueError(f"{_CONFIG!r} is the config, not one of the files")
        return self


class AdapterKind(ModelKind[AdapterContent]):
    """An adapter as an artifact."""

    name = "adapter"
    title = "LoRA weights of an open model"
    model = AdapterContent

    def examples(self) -> tuple[JsonValue, JsonValue]:
        """Two adapters."""
        config: dict[str, JsonValue] = {
            "peft_type": "LORA",
            "r": 8,
            "lora_alpha": 16,
            "target_modules": ["q_proj"],
        }
        weights: dict[str, JsonValue] = {
            "adapter_model.safetensors": {"sha256": "ab" * 32, "size": 4096}
        }
        return (
            {"base_model": "open/tiny", "config": config, "files": weights},
            {"base_model": "open/tiny", "config": {**config, "r": 16}, "recipe": "grpo"},
        )

    def summary(self, content: JsonValue) -> str:
        """What it adapts, and its size."""
        found = self.parse(content)
        size = sum(one.size for one in found.files.values())
        rank = found.config.get("r")
        return f"{found.config['peft_type']} of {found.base_model}, r={rank}, {size:,} bytes"

    def files(self, content: JsonValue) -> dict[str, bytes]:
        """``adapter_config.json`` as PEFT writes it, and ``instar_adapter.json``: all the rest.

        The weights are added by whoever has their bytes.
        """
        assert isinstance(content, dict)
        about = {key: value for key, value in content.items() if key != "config"}
        return {_CONFIG: pretty_json(content["config"]), _ABOUT: pretty_json(about)}

    def read_files(self, files: Mapping[str, bytes]) -> JsonValue:
        """The adapter of a folder, ours or one that PEFT wrote (its other files are hashed)."""
        if _CONFIG not in files:
            raise InvalidContent(
                f"a PEFT folder has the file {_CONFIG!r}; found "
                f"{', '.join(sorted(files)) or 'none'}."
            )
        config = parse_json_file(_CONFIG, files[_CONFIG])
        weights: dict[str, JsonValue] = {
            path: {"sha256": content_hash(data), "size": len(data)}
            for path, data in sorted(files.items())
            if path not in (_CONFIG, _ABOUT)
        }
        if _ABOUT in files:
            about = parse_json_file(_ABOUT, files[_ABOUT])
            if not isinstance(about, dict):
                raise InvalidContent(f"{_ABOUT!r} must hold an object.")
            named = about.get("files")
            if weights and named != weights:
                raise InvalidContent(
                    f"the files of the adapter are not those that {_ABOUT!r} names.",
                    remedy="Copy the folder again.",
                )
            return self.check({**about, "config": config})
        base = config.get("base_model_name_or_path") if isinstance(config, dict) else None
        return self.check({"base_model": base or "", "config": config, "files": weights})
