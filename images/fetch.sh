#!/bin/sh
# Fetch, with the network: every file of the lock into the wheelhouse, its hash checked. Runs inside the base, so that
# the base's own Python decides which files fit. Nothing of this container is kept but the wheelhouse.
set -eu
exec python3 -m pip download --require-hashes --no-deps --only-binary :all: --no-cache-dir --progress-bar off \
    --requirement "$1" --dest "$2"
