#!/usr/bin/env bash
# Measures SnugBERT and stock BERT on one GPU, or trains an encoder there.
#
#     benchmarks/gpu.sh quick                                  # all pieces in at most 8.5 minutes, then the table
#     benchmarks/gpu.sh quick steps --output_dir gpu-results   # one piece
#     benchmarks/gpu.sh quick --plan                           # the pieces and their seconds
#     benchmarks/gpu.sh recipe                                 # trains an encoder in ten minutes, and scores it
#
# `benchmarks/gpu.sh quick --help` and `recipe --help` describe the pieces and flags.
#
# Nothing is downloaded. The machine needs torch with CUDA, transformers, pyarrow, pandas, and the packages below, for
# `recipe` all packages of `pip install '.[train]'`. If it has no network, download them elsewhere as wheels for its
# Python, for example with
#
#     pip download --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 --no-deps \
#         --dest build/wheels datasets dill multiprocess sentencex xxhash
#     pip wheel --no-deps --wheel-dir build/wheels evaluate seqeval    # for recipe. seqeval has no wheel
#
# and copy the repository with build/wheels/. This script unpacks the wheels into build/site/ and uses them from there.
# The compiler's cache of an earlier call goes into build/compiler-cache.zip.
set -u

repository=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
case "${1:-}" in
quick | recipe) script=gpu_$1.py ;;
*)
    echo "usage: benchmarks/gpu.sh quick|recipe [PIECE] [FLAGS]" >&2
    exit 2
    ;;
esac
if [ ! -d "$repository/build/site" ] && compgen -G "$repository/build/wheels/*.whl" >/dev/null; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$repository/build/site" \
        "$repository"/build/wheels/*.whl ||
        echo "warning: pip could not install build/wheels/*.whl, so packages may be missing." >&2
fi
export PYTHONPATH="$repository:$repository/build/site${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" "$repository/benchmarks/$script" "${@:2}"
