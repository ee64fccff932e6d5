#!/usr/bin/env bash
# Everything that a GPU can tell, in one command of under nine minutes: one JSON, and one Markdown page.
#
#   tests/gpu/check.sh --out FOLDER                 # on a machine with a GPU, Python 3.11 or newer and torch
#   tests/gpu/check.sh --out FOLDER --only bits     # some sections; see check.py --help
#   tests/gpu/check.sh --out FOLDER --cpu           # the same at toy size on the CPU: does it still work?
#
# The machine needs no network. What it lacks beside torch travels as wheels in the folder wheels, which
# tests/gpu/fetch_wheels.sh fetches on a machine that has one. Without Ray, sections on Ray are left out.
# PYTHON names the interpreter that has torch (python3).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
wheels="$(cd "$here/../.." && pwd)/wheels"
python="${PYTHON:-python3}"
export PYTHONPATH="$here/../..${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if compgen -G "$wheels/*/*" >/dev/null; then
    # One for each Python: a folder with another one's compiled modules would hide those that fit.
    site="$wheels/site-$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')"
    "$python" "$here/unpack_wheels.py" "$wheels" "$site"
    export PYTHONPATH="$PYTHONPATH:$site"
fi
exec "$python" "$here/check.py" "$@"
