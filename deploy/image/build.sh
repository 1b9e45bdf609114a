#!/usr/bin/env bash
# Builds the images of the Dockerfile by buildah, without a container engine. Say it as root: make image
#
# TARGETS  which ones; "stream trainer" by default
# BASE     the image below them. By default it is made by debootstrap: a Debian of the suite that the Dockerfile's BASE names,
#          with its Python. Another name, such as python:3.11-slim-bookworm, is fetched from its registry.
# STORE    the folder that gets them, .build/image by default: 5 GB for the stream, and about 25 while the trainer is built
# PIP_INDEX_URL, PIP_EXTRA_INDEX_URL  as the Dockerfile says
set -euo pipefail
cd "$(dirname "$0")/../.."
TARGETS=${TARGETS:-stream trainer} BASE=${BASE:-debootstrap} STORE=$(realpath -m "${STORE:-.build/image}")

needed=(buildah)
if [ "$BASE" = debootstrap ]; then needed+=(debootstrap); fi
for program in "${needed[@]}"; do
  command -v "$program" >/dev/null || {
    echo "error: $program is not installed. Install it, as by apt-get install ${needed[*]}, or build with a Docker engine: docker build --target stream ." >&2
    exit 1
  }
done
if [ "$(id -u)" != 0 ]; then
  echo "error: images are built by root only. Say sudo make image, or build with a Docker engine: docker build --target stream ." >&2
  exit 1
fi

mkdir -p "$STORE/tmp"
export TMPDIR=$STORE/tmp # a layer lies there while it is committed
# The driver vfs works on every file system, and in containers.
here() { buildah --root "$STORE/store" --runroot "$STORE/run" --storage-driver vfs "$@"; }

if [ "$BASE" = debootstrap ]; then
  BASE=localhost/freshet-base
  if ! here inspect --type image "$BASE" >/dev/null 2>&1; then
    echo "Making $BASE by debootstrap …"
    container=$(here from scratch)
    root=$(here mount "$container")
    debootstrap --variant=minbase --include=ca-certificates,python-is-python3,python3-pip \
      "$(sed -n 's/^ARG BASE=.*-//p' Dockerfile)" "$root" >"$STORE/debootstrap.log" ||
      { echo "error: debootstrap failed. $STORE/debootstrap.log says why" >&2; exit 1; }
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/*
    here commit --quiet --rm "$container" "$BASE" >/dev/null
  fi
fi

authorities=/etc/ssl/certs/ca-certificates.crt # an index may have a certificate that only this machine trusts
for target in $TARGETS; do
  echo "Building freshet-$target …"
  # The format docker, because OCI's has no health check.
  here build --isolation chroot --network host --format docker --target "$target" --tag "freshet-$target" \
    --build-arg "BASE=$BASE" --build-arg "PIP_INDEX_URL=${PIP_INDEX_URL:-}" --build-arg "PIP_EXTRA_INDEX_URL=${PIP_EXTRA_INDEX_URL:-}" \
    $([ -e "$authorities" ] && echo --volume "$authorities:$authorities:ro") . >"$STORE/$target.log" 2>&1 ||
    { tail -20 "$STORE/$target.log" >&2; echo "error: freshet-$target was not built. $STORE/$target.log has all lines" >&2; exit 1; }
done
rm -rf "$TMPDIR"
here images
echo "To publish one: buildah --root $STORE/store --storage-driver vfs push localhost/freshet-stream docker://REGISTRY/freshet-stream"
