#!/bin/sh
# Build, without a network: a wheel of each source given, in an environment that holds the stack's lock and the lock of
# its build tools. The environment is thrown away; the wheels are what is kept, with the calls of nvcc beside them.
set -eu
interpreter=$1 lock=$2 wheelhouse=$3 build_lock=$4 build_wheelhouse=$5 work=$6 out=$7
shift 7
mkdir -p "$work"

explain() {
    code=$?
    if [ "$code" != 0 ] && ! command -v c++ >/dev/null; then
        echo "ERROR: there is no C++ compiler here, which most builds need: add g++ to the base's packages" >&2
    fi
    exit "$code"
}
trap explain EXIT

"$interpreter" -m venv "$work/env"
python=$work/env/bin/python

fill() {
    "$python" -m pip install --no-index --find-links "$2" --require-hashes --no-deps --no-cache-dir \
        --progress-bar off --requirement "$1"
}
fill "$lock" "$wheelhouse"
fill "$build_lock" "$build_wheelhouse"
export PATH="$work/env/bin:$PATH" MAX_JOBS="${MAX_JOBS:-$(nproc)}"

# The CUDA packages of the index have no unversioned names of libraries, which a linker asks for, and their folders are
# called lib, where a build looks in lib64. nvcc is called without fast math, whatever a source asks for: it would
# make the kernel under test another function.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
toolkit=$(find "$packages/nvidia" -path '*/bin/nvcc' 2>/dev/null | head -n 1)
[ -n "$toolkit" ] || toolkit=$(PATH="${CUDA_HOME:-/usr/local/cuda}/bin:$PATH" command -v nvcc || :)
if [ -n "$toolkit" ]; then
    toolkit=$(readlink -f "$toolkit")
    toolkit=${toolkit%/bin/nvcc}
    export CUDA_HOME="$work/cuda"
    mkdir -p "$CUDA_HOME/bin" "$CUDA_HOME/lib64"
    ln -s "$toolkit/include" "$CUDA_HOME/include"
    ln -s "$CUDA_HOME/lib64" "$CUDA_HOME/lib"
    [ ! -d "$toolkit/nvvm" ] || ln -s "$toolkit/nvvm" "$CUDA_HOME/nvvm"
    for program in "$toolkit"/bin/*; do ln -s "$program" "$CUDA_HOME/bin/"; done
    for library in "$toolkit"/lib64/* "$packages"/nvidia/*/lib/*; do
        [ -e "$library" ] || continue
        name=$(basename "$library")
        ln -sf "$library" "$CUDA_HOME/lib64/$name"
        case $name in *.so.*) ln -sf "$library" "$CUDA_HOME/lib64/${name%%.so.*}.so" ;; esac
    done
    # cuDNN and NCCL have folders of their own beside the toolkit's.
    for include in "$packages"/nvidia/*/include; do
        [ "$include" = "$toolkit/include" ] || CPATH="${CPATH:+$CPATH:}$include"
    done
    export CPATH="${CPATH:-}" LIBRARY_PATH="$CUDA_HOME/lib64${LIBRARY_PATH:+:$LIBRARY_PATH}"
    rm "$CUDA_HOME/bin/nvcc"
    cat >"$CUDA_HOME/bin/nvcc" <<WRAPPER
#!/bin/sh
for argument; do
    shift
    case \$argument in -use_fast_math | --use_fast_math) ;; *) set -- "\$@" "\$argument" ;; esac
done
printf '%s\n' "\$*" >>"$out/nvcc.log"
exec "$toolkit/bin/nvcc" "\$@"
WRAPPER
    chmod +x "$CUDA_HOME/bin/nvcc"
    export PATH="$CUDA_HOME/bin:$PATH"
fi

# A build writes beside its source, which is mounted read-only.
for source; do
    echo "building $(basename "$source")"
    copy=$work/sources/$(basename "$source")
    mkdir -p "$work/sources"
    cp -R "$source" "$copy"
    chmod -R u+w "$copy"
    "$python" -m pip wheel --no-build-isolation --no-deps --no-index --no-cache-dir --progress-bar off \
        --verbose --wheel-dir "$out" "$copy" || {
        command -v c++ >/dev/null || echo "ERROR: there is no C++ compiler: add g++ to the base's packages" >&2
        [ -n "$toolkit" ] || echo "ERROR: there is no nvcc: add nvidia-cuda-nvcc to the stack's build.requirements" >&2
        exit 1
    }
done
