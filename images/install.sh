#!/bin/sh
# Install, without a network: an environment that holds exactly the lock, from the wheelhouse alone, hashes checked
# again; then the wheels that were built from source, by the hashes of their build, and source trees, which a .pth file
# puts on its path. The environment has no pip: nothing can be added to it later.
set -eu
lock=$1 wheelhouse=$2 target=$3 built=$4 trees=$5
shift 5
python3 -m venv --without-pip "$target"

fill() {
    python3 -m pip --python "$target/bin/python" install --no-index --require-hashes --no-deps --no-cache-dir \
        --progress-bar off "$@"
}
fill --find-links "$wheelhouse" --requirement "$lock"
if [ -f "$built/requirements.txt" ]; then
    cd "$built"
    fill --requirement requirements.txt
fi
packages=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
for tree in "$trees"/*; do
    [ -d "$tree" ] || continue
    mkdir -p "$target/src"
    cp -R "$tree" "$target/src/"
    echo "$target/src/$(basename "$tree")" >>"$packages/bitmatrix-sources.pth"
done
for module; do
    "$target/bin/python" -I -c "import $module" || { echo "ERROR: $module doesn't import" >&2; exit 1; }
done
