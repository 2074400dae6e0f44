#!/usr/bin/env bash
# Passes if the code is clean, typed and works: lint, mypy, pytest. What stands on the
# command line goes to pytest, e.g. `tools/test.sh -k balancer -x`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

# tools/venv has all of this; an environment of the user's own may not.
python - <<'PYTHON'
import importlib.metadata
import sys

NEEDED = "black flake8 hypothesis isort mypy numpy pytest pytest-xdist types-PyYAML"
missing = []
for name in NEEDED.split():
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        missing.append(name)
if missing:
    sys.exit(
        f"test: the active environment ({sys.prefix}) lacks {', '.join(missing)}. "
        "Install them there with `python -m pip install -e '.[test]'`, or deactivate "
        "it and run this again to have an environment made."
    )
PYTHON

tools/lint.sh
echo "test: mypy"
python -m mypy balancer
echo "test: pytest"
# One thread for each of the two workers: PyTorch's own threads would fight over the
# cores, which costs several times the time. Hypothesis draws the same examples each
# time, so that a commit passes or fails for what is in it; pytest alone draws new ones.
OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} python -m pytest -n 2 --dist worksteal \
    --hypothesis-profile=ci test "$@"
