#!/usr/bin/env bash
# Makes the virtual environment: torch first in its own step (pip finds a CPU build where one is
# offered), then everything else from requirements.lock, then the project itself.
set -euo pipefail
if [ -z "${PYTHON:-}" ] || ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  tried="${PYTHON:-python3}"
  echo "Instar needs Python 3.11 or newer; $tried is: $("$tried" --version 2>/dev/null | head -1 | grep . || echo "nothing that runs")." >&2
  echo "Install one and run again, or name it: make setup PYTHON=/path/to/python3.11" >&2
  exit 2
fi
dir="$(dirname "$VENV")"
if ! mkdir -p "$dir" 2>/dev/null || ! [ -w "$dir" ]; then
  echo "The environment cannot be made in $VENV: $dir cannot be written." >&2
  echo "Name another place: make setup VENV=/path/that/you/may/write/venv" >&2
  exit 2
fi
free_mb="$(df -Pm "$dir" | awk 'NR==2 {print $4}')"
need_mb="${INSTAR_MIN_FREE_MB:-4000}"
if [ "$free_mb" -lt "$need_mb" ]; then
  echo "Not enough disk space for the environment: $free_mb MB free in $(cd "$dir" && pwd), $need_mb MB needed." >&2
  echo "Free some space, or put the environment elsewhere: make setup VENV=/path/with/space/venv" >&2
  exit 2
fi
started=$SECONDS
echo "Setting up the environment in $VENV: once, 2 GB on disk, one to three minutes ..."
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
export PIP_DISABLE_PIP_VERSION_CHECK=1
"$VENV/bin/python" -m pip install -q 'uv>=0.9,<1' 2> >(grep -v 'is ignored: it is neither' >&2)
if "$PYTHON" -c 'import sys; sys.exit(sys.version_info >= (3, 12))' || [ -n "${INSTAR_WITH_TORCH:-}" ]; then
  "$VENV/bin/python" -m pip install -q 'torch==2.13.0' 2> >(grep -v 'is ignored: it is neither' >&2)
else
  echo "Python 3.12+: torch is left out (set INSTAR_WITH_TORCH=1 to install it); the local model needs it."
fi
# The lock is complete; without --no-deps a package that needs torch would fetch a build of several GB.
"$VENV/bin/uv" pip install -q --python "$VENV/bin/python" --no-deps -r requirements.lock
"$VENV/bin/uv" pip install -q --python "$VENV/bin/python" --no-deps --editable .
echo "Environment ready in $VENV after $((SECONDS - started)) s."
