#!/bin/sh
# nvcc with the given arguments: that of the interpreter's packages, else the machine's own.
set -eu
interpreter=$1
shift
packages=$("$interpreter" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
nvcc=$(find "$packages/nvidia" -path '*/bin/nvcc' 2>/dev/null | head -n 1)
[ -n "$nvcc" ] || nvcc=$(PATH="$PATH:${CUDA_HOME:-/usr/local/cuda}/bin" command -v nvcc || :)
if [ -z "$nvcc" ]; then
    echo "ERROR: there is no nvcc: install CUDA's toolkit, or the package nvidia-cuda-nvcc" >&2
    exit 127
fi
# The packages' folder of libraries isn't where nvcc looks.
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
exec "$nvcc" "-L$toolkit/lib" "$@"
