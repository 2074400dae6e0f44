#!/usr/bin/env bash
# Runs the core's tests, those that need no ESPnet, on both ends of the range of PyTorch
# that setup.py supports: its lower bound and the pin of tools/requirements.txt. Each in
# an environment of its own in a temporary folder that goes away again. Versions on the
# command line replace the two: `tools/torch_versions.sh 2.6.0`. What stands after `--`
# goes to pytest. PYTHON names the interpreter, which the oldest PyTorch must know.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

versions=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    versions+=("$1")
    shift
done
[ $# = 0 ] || shift
if [ ${#versions[@]} = 0 ]; then
    oldest=$(sed -n 's/.*"torch>=\([0-9.]*\)".*/\1/p' setup.py)
    newest=$(sed -n 's/^torch==//p' tools/requirements.txt)
    # Of the oldest minor version its last patch, which ~= chooses.
    versions=("~=$oldest.0" "==$newest")
fi

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || {
    echo "torch_versions: $python is not a Python of version 3.10 or newer." >&2
    exit 1
}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0
core=(test/test_*.py test/gradients test/norms test/scales test/losses
    test/loss_balancer test/quantities)
needed=(hypothesis numpy pytest PyYAML setuptools typeguard
    "torchjd[cagrad,fairgrad,quadprog-projector]")
grep -E '^(cvxpy|hypothesis|numpy|pytest|PyYAML|qpsolvers|quadprog|setuptools|torchjd|typeguard)==' \
    tools/requirements.txt >"$folder/pins.txt"

for version in "${versions[@]}"; do
    [[ $version == [0-9]* ]] && version="==$version"
    echo "torch_versions: torch$version"
    rm -rf "$folder/venv"
    "$python" -m venv "$folder/venv"
    # Without the pins of what PyTorch brings, which are those of the newest one.
    "$folder/venv/bin/python" -m pip install -q -c "$folder/pins.txt" \
        "torch$version" "${needed[@]}"
    "$folder/venv/bin/python" -c \
        'import torch; print(f"torch_versions: testing torch {torch.__version__}")'
    PYTHONPATH=$PWD OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} \
        "$folder/venv/bin/python" -m pytest -q -p no:cacheprovider "${core[@]}" "$@" ||
        failed=1
done

[ "$failed" = 0 ] || echo "torch_versions: failed" >&2
exit "$failed"
