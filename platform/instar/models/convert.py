"""Convert: turns a GGUF file into an ordinary transformers folder; run as a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from instar.engine.weights import MARKER, marker_content

__all__ = ["convert", "main"]


def convert(gguf: Path, folder: Path) -> None:
    """Writes the model, its tokenizer and the marker (last) into a new folder.

    Args:
        gguf: A Llama-family GGUF file with its tokenizer and chat template.
        folder: Where to write; empty or not there yet.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=name)
    model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=name, dtype=torch.float32)
    # transformers refuses to save what it read from GGUF, although the weights are plain float32 by
    # then: it goes by these marks.
    model.hf_quantizer = None
    for mark in ("quantization_method", "is_quantized"):
        model.__dict__.pop(mark, None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    (folder / "model.safetensors").chmod(0o644)
    (folder / MARKER).write_text(json.dumps(marker_content()), encoding="utf-8")


def main() -> None:
    """``python -m instar.models.convert FILE.gguf FOLDER``."""
    from instar.settings import prepare_process

    prepare_process()
    gguf, folder = sys.argv[1:]
    convert(Path(gguf), Path(folder))


if __name__ == "__main__":
    main()
