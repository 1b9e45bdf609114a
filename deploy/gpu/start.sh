#!/usr/bin/env bash
# On a machine with a GPU and without a network, from the repository's root: installs the wheels that prepare.sh laid into
# .build/gpu into a folder of their own, and runs benchmarks/gpu.py with the machine's torch. Arguments are those of gpu.py.
set -euo pipefail
SITE=${SITE:-${TMPDIR:-/tmp}/freshet-gpu-site} PYTHON=${PYTHON:-python3}
"$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --upgrade --target "$SITE" .build/gpu/wheels/*.whl
PYTHONPATH=$SITE exec "$PYTHON" benchmarks/gpu.py "$@"
