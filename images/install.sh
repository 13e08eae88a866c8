#!/bin/sh
# Install, without a network: an environment that holds exactly the lock, from the wheelhouse alone, hashes checked
# again. The environment has no pip: nothing can be added to it later.
set -eu
lock=$1 wheelhouse=$2 target=$3
python3 -m venv --without-pip "$target"
python3 -m pip --python "$target/bin/python" install --no-index --find-links "$wheelhouse" --require-hashes --no-deps \
    --no-cache-dir --progress-bar off --requirement "$lock"
