#!/bin/sh
# Tests h3av serve with the real openai client, raw sockets and faults.
#
#   tests/server/run.sh PROGRAM [PYTEST ARGS]
#
# Makes a Python environment under build/ with the packages of requirements.txt (once). When that
# cannot be done here (no python3, no package index) it says so and ends with 77, which CTest takes
# as skipped. H3_LONG=1 runs the long ones too: load, 30 kills, 50 generations.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=$1
shift
venv=$root/build/python

. "$here/venv.sh"
make_venv "$venv" "$here/requirements.txt" || exit 77

H3AV=$program
export H3AV OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # threads that wait do not slow down others
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider -W ignore::DeprecationWarning -x "$here" --ignore="$here/web" "$@"
