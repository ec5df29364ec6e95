"""Adapters: a PEFT folder with its weights, whose bytes travel by their hash."""

from __future__ import annotations

import json
from typing import Any

from instar.registry.kinds import open_kind
from instar.store.artifacts import put_blobs
from instar.store.projects import create_project
from instar.store.session import Database
from instar.store.transfer import read_blob
from instar_core.base import content_hash
from instar_skills.archives import read_archive
from tests.integration.transfer.conftest import bring_in, manifest_of, save, take_out

WEIGHTS = bytes(range(256)) * 20


def test_an_adapter_goes_out_as_a_peft_folder_and_comes_back_with_its_weights(
    database: Any,
) -> None:
    content = open_kind("adapter").check(
        {
            "base_model": "org/small-model",
            "config": {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q"]},
            "files": {
                "adapter_model.safetensors": {
                    "sha256": content_hash(WEIGHTS),
                    "size": len(WEIGHTS),
                },
                "elsewhere.bin": {"sha256": "0" * 64, "size": 1},
            },
        }
    )

    async def go(db: Database) -> None:
        project = database.project_id
        async with db.transaction(project) as session:
            await put_blobs(session, project, [WEIGHTS])
            await save(session, project, "adapter", "tuned", content)
        data = await take_out(db, project)
        files = read_archive(data)
        folder = next(path for path in files if path.endswith("adapter_config.json"))
        config = json.loads(files[folder])
        assert (config["peft_type"], config["r"]) == ("LORA", 8)
        weights = folder.replace("adapter_config.json", "adapter_model.safetensors")
        assert files[weights] == WEIGHTS
        other = await create_project(db, "other")
        await bring_in(db, other, data)
        async with db.transaction(other) as session:
            assert await read_blob(session, other, content_hash(WEIGHTS)) == WEIGHTS
        assert manifest_of(await take_out(db, other)) == manifest_of(data)
        assert (await bring_in(db, other, data)).nothing

    database.run(go)
