#!/usr/bin/env bash
# Style of all Python and shell code: black, isort, flake8, bash -n, shellcheck.
# The pinned linters are taken from the active environment or tools/venv. Where neither
# has them they get an environment of their own, in seconds, and nothing else does.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

has_linters() {
    "$1" - tools/requirements.txt 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version

pins = dict(line.strip().partition("==")[::2] for line in open(sys.argv[1]))
sys.exit(any(version(name) != pins[name] for name in ("black", "flake8", "isort")))
PYTHON
}

python() { "$linting" "$@"; }
for linting in "$(type -P python)" tools/venv/bin/python tools/lint_venv/bin/python; do
    ! has_linters "$linting" || break
done
if ! has_linters "$linting"; then
    echo "lint: Installing black, flake8 and isort into tools/lint_venv." >&2
    "${PYTHON:-python3}" -m venv --clear tools/lint_venv
    python -m pip install -qq --disable-pip-version-check -c tools/requirements.txt \
        black flake8 isort
fi

code=()
for path in balancer egs test tools setup.py; do
    [ ! -e "$path" ] || code+=("$path")
done
failed=0

echo "lint: black"
python -m black --check --quiet --diff "${code[@]}" || failed=1
echo "lint: isort"
python -m isort --check-only --diff --quiet "${code[@]}" || failed=1
echo "lint: flake8"
python -m flake8 "${code[@]}" || failed=1

scripts=(.ci/run)
while IFS= read -r path; do
    scripts+=("$path")
done < <(find egs tools -name '*venv' -prune -o -name '*.sh' -print | sort)
echo "lint: bash -n"
for path in "${scripts[@]}"; do
    bash -n "$path" || failed=1
done
if command -v shellcheck >/dev/null; then
    echo "lint: shellcheck"
    shellcheck "${scripts[@]}" || failed=1
fi

[ "$failed" = 0 ] || echo "lint: failed. 'python -m black .' and 'python -m isort .'" \
    "mend what they complain of." >&2
exit "$failed"
