"""The wheel: what `pip install instar` brings must be whole, and need no torch to be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "instar",
    "instar_core",
    "instar_evolvers",
    "instar_memory",
    "instar_rl",
    "instar_skills",
    "instar_web",
)
# The model engine's process is the one place that is made of torch.
NEEDS_TORCH = ("embedding", "llama", "prefix", "sampling", "scheduler")
IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.modules["torch"] = sys.modules["transformers"] = None
sys.path.insert(0, sys.argv[1])
failed, files = {}, []
for top in sys.argv[2:]:
    package = importlib.import_module(top)
    files.append(package.__file__)
    for module in pkgutil.walk_packages(package.__path__, top + "."):
        if module.name.endswith(("__main__", "migrations.env", "tools._shim")):
            continue  # scripts, which do something when they are imported
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            failed[module.name] = str(error)
print(json.dumps([failed, files]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    out = tmp_path_factory.mktemp("dist")
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "build", "--wheel", "--quiet", "--out-dir", str(out), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_every_tracked_file_of_its_packages(wheel: Path) -> None:
    folders = [f"{home.relative_to(ROOT)}/" for home in sorted(ROOT.glob("*/instar*"))]
    listed = subprocess.run(
        ["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = {line.split("/", 1)[1] for line in listed.stdout.splitlines()}
    held = set(zipfile.ZipFile(wheel).namelist())
    assert len(tracked) > 200
    assert {name.split("/")[0] for name in tracked} == set(PACKAGES)
    assert tracked - held == set()
    assert {name.split("/")[0] for name in held if ".dist-info" not in name} == set(PACKAGES)


def test_the_wheel_declares_its_command_and_evolvers(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    entry = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    text = archive.read(entry).decode()
    for line in ("instar = instar.cli.main:main", "[instar.evolvers]", "bootstrap =", "tf_grpo ="):
        assert line in text


def test_every_module_of_the_wheel_is_imported_without_torch(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, str(tmp_path), *PACKAGES],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failed, files = json.loads(done.stdout)
    assert all(Path(file).is_relative_to(tmp_path) for file in files), files
    assert set(failed) == {f"instar.engine.{name}" for name in NEEDS_TORCH}, failed
