#!/usr/bin/env bash
# Measures SnugBERT and stock BERT on one GPU, in pieces of at most 9 minutes, at most 40 minutes in total.
#
#     benchmarks/gpu.sh                                   # all pieces, then the table
#     benchmarks/gpu.sh eager --output_dir gpu-results    # one piece
#     benchmarks/gpu.sh table --output_dir gpu-results    # the table of all results so far
#
# `python benchmarks/gpu.py --help` describes pieces and flags. Results are in gpu-results/ unless --output_dir says
# otherwise. An interrupted piece continues when it is started again. So does a piece that ran out of time: `compiled`
# has 36 rows, most important first, and may not finish all of them.
#
# Nothing is downloaded. The machine needs torch with CUDA, transformers, and the packages that `pip install
# '.[train]'` adds. If the machine has no network, download the missing ones elsewhere as wheels for its Python, for
# example with
#
#     pip download --no-deps --dest build/wheels datasets dill multiprocess xxhash sentencex seqeval evaluate
#
# and copy the repository with build/wheels/. This script unpacks the wheels into build/site/ and uses them from there.
set -u

repository=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
if [ ! -d "$repository/build/site" ] && compgen -G "$repository/build/wheels/*.whl" >/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$repository/build/site" \
        "$repository"/build/wheels/*.whl || exit
fi
export PYTHONPATH="$repository:$repository/build/site${PYTHONPATH:+:$PYTHONPATH}"

run() {  # PIECE MINUTES FLAGS...: an error of the GPU ends a process, so a second one measures the other rows
    local script=$repository/benchmarks/gpu.py piece=$1 minutes=$2
    shift 2
    timeout "$((minutes * 60))" bash -c '"$@" || "$@"' - \
        "$python" "$script" "$piece" --minutes "$((minutes - 1))" "$@"
}

if [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; then
    piece=$1
    shift
    run "$piece" 9 "$@"
    exit
fi
run correctness 4 "$@"
run eager 7 "$@"
run compiled 9 "$@"
run lengths 6 "$@"
run pretrain 5 "$@"
run finetune 5 "$@"
run profile 4 "$@"
run table 1 "$@"
