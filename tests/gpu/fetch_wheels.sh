#!/usr/bin/env bash
# Fetches wheels into the folder wheels, for a machine with torch and without network; git ignores them.
#
#   tests/gpu/fetch_wheels.sh                       # wheels/package: what a machine with torch usually lacks
#   tests/gpu/fetch_wheels.sh --ray                 # also Ray: wheels/ray, wheels/ray-part-0, wheels/ray-part-1
#   tests/gpu/fetch_wheels.sh NAME ...              # these as well
#
# Versions are those of constraints.txt. PYTHON_VERSION is the other machine's (3.12), PLATFORMS its platforms.
# Each folder is below 64 MiB, so that it can be carried alone: Ray's wheel is cut in parts, which lie on the
# other machine one beside the other when check.sh joins them.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
wheels="$(cd "$here/../.." && pwd)/wheels"
python="${PYTHON:-python3}"
names=(annotated-types greenlet pydantic pydantic-core typing-inspection)
ray_needs=(attrs jsonschema jsonschema-specifications referencing rpds-py)
platforms=()
for platform in ${PLATFORMS:-manylinux_2_28_x86_64 manylinux_2_27_x86_64 manylinux_2_24_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64}; do
    platforms+=(--platform "$platform")
done

fetch() { # FOLDER NAME...
    local folder="$1"
    shift
    rm -rf "$folder"
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --implementation cp \
        --python-version "${PYTHON_VERSION:-3.12}" "${platforms[@]}" -c "$here/../../constraints.txt" -d "$folder" "$@"
}

with_ray=
for word in "$@"; do
    if [ "$word" = --ray ]; then with_ray=1; else names+=("$word"); fi
done
rm -rf "$wheels"/site-* "$wheels/joined"
fetch "$wheels/package" "${names[@]}"
if [ -n "$with_ray" ]; then
    fetch "$wheels/ray" "${ray_needs[@]}"
    fetch "$wheels/whole" ray
    wheel="$(basename "$wheels"/whole/ray-*.whl)"
    (cd "$wheels/whole" && sha256sum "$wheel" >"$wheels/ray/parts.sha256")
    split --number=2 --numeric-suffixes --suffix-length=1 "$wheels/whole/$wheel" "$wheels/whole/part-"
    for part in 0 1; do
        mkdir -p "$wheels/ray-part-$part"
        mv "$wheels/whole/part-$part" "$wheels/ray-part-$part/$wheel.$part"
    done
    rm -r "$wheels/whole"
fi
du -sh "$wheels"/*
