#!/bin/sh
# Resolve, with the network: which files would be installed for these requirements, with their hashes, as pip's own
# installation report. Runs inside the base, so that the lock is for the base's Python. Installs nothing.
set -eu
report=$1
shift
exec python3 -m pip install --dry-run --ignore-installed --only-binary :all: --no-cache-dir --progress-bar off --quiet \
    --report "$report" "$@"
