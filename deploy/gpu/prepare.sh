#!/usr/bin/env bash
# Lays what a machine with a GPU but without a network lacks into .build/gpu, which git ignores: wheels of the packages that
# the usual scientific Python does not have, in the versions of constraints.txt. Say it where there is a network, from the
# repository's root, copy the repository and .build/gpu to that machine, and say there: bash deploy/gpu/start.sh
set -euo pipefail
test -f constraints.txt || { echo "error: constraints.txt is not here. Say this from the repository's root" >&2; exit 1; }
PYTHON=${PYTHON:-.venv/bin/python} TARGET=${TARGET:-3.12} WHEELS=.build/gpu/wheels
# torch, numpy, numba, scipy, pandas, pyarrow, psutil, PyYAML, typer, click, rich, prometheus_client and torch_geometric are there.
packages=(
  annotated-types packaging typing_extensions pydantic pydantic_core pydantic-settings python-dotenv structlog waitress watchdog typing-inspection
  confluent-kafka cramjam crc32c fastavro kafka-python lz4 obstore pymetis python-snappy zstandard
  apache-beam beartype cffi cryptography httplib2 objsize proto-plus pyparsing pytz sortedcontainers
)
wanted=$(mktemp) && trap 'rm -f "$wanted"' EXIT
for package in "${packages[@]}"; do
  grep -E "^$package==" constraints.txt >> "$wanted" || { echo "error: $package is not in constraints.txt" >&2; exit 1; }
done
mkdir -p "$WHEELS" && rm -f "$WHEELS"/*.whl # two versions of a package would stop the installation
platforms=()
for glibc in 39 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_x86_64"); done
"$PYTHON" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$TARGET" \
  --implementation cp "${platforms[@]}" --platform manylinux2014_x86_64 --platform manylinux1_x86_64 -d "$WHEELS" -r "$wanted"
echo "$(ls "$WHEELS" | wc -l) wheels, $(du -sm .build/gpu | cut -f1) MB in .build/gpu; there: bash deploy/gpu/start.sh"
