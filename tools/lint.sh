#!/usr/bin/env bash
# Style of all Python and shell code: black, isort, flake8, bash -n, shellcheck.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

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
done < <(find egs tools -name venv -prune -o -name '*.sh' -print | sort)
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
