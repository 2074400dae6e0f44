#!/usr/bin/env bash
# Runs all tests as other processors would compute them: under each setting below that
# this processor has, with one thread and with two, in random order. Three seeds, of the
# order, of hypothesis and of Python's hashes, are spread over the runs; SEEDS="4 5 6"
# names others. Settings on the command line replace all: `tools/processors.sh as-it-is
# ATEN_CPU_CAPABILITY=avx2`. What stands after `--` goes to pytest. At the end stands
# what failed, as commands that repeat it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/setup.sh
. tools/setup.sh

settings=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    settings+=("$1")
    shift
done
[ $# = 0 ] || shift
if [ ${#settings[@]} = 0 ]; then
    # What the processor would choose anyway is no setting of its own.
    while IFS= read -r setting; do
        settings+=("$setting")
    done < <(python - <<'PYTHON'
import torch

print("as-it-is")
best = torch.backends.cpu.get_cpu_capability()
if best == "AVX512":
    print("ATEN_CPU_CAPABILITY=avx2")
if best != "DEFAULT":
    print("ATEN_CPU_CAPABILITY=default")
if best in ("AVX2", "AVX512") and torch.backends.mkldnn.is_available():
    print("ONEDNN_MAX_CPU_ISA=SSE41")
if torch.backends.mkl.is_available():
    print("MKL_CBWR=COMPATIBLE")
PYTHON
    )
fi
read -ra seeds <<<"${SEEDS:-1 2 3}"
cores=$(python -c 'import os; print(os.cpu_count())')

count=0
failed=()
for setting in "${settings[@]}"; do
    for threads in 1 2; do
        seed=${seeds[count % ${#seeds[@]}]}
        count=$((count + 1))
        # Threads that wait sleep: else those of several workers fight over the cores.
        run=(env "OMP_NUM_THREADS=$threads" OMP_WAIT_POLICY=PASSIVE)
        run+=("PYTHONHASHSEED=$seed")
        [ "$setting" = as-it-is ] || run+=("$setting")
        run+=(python -m pytest -q -n "$cores" --dist worksteal "--hypothesis-seed=$seed"
            --random-order "--random-order-seed=$seed" "$@")
        line=$(printf '%q ' "${run[@]}")
        echo "processors: $line"
        "${run[@]}" || failed+=("$line")
    done
done

echo "processors: ${#failed[@]} of $count runs failed"
[ ${#failed[@]} = 0 ] || printf '    %s\n' "${failed[@]}"
[ ${#failed[@]} = 0 ]
