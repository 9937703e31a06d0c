#!/bin/sh
# Tests the page of h3av serve in a real Chromium (Debian's), headless.
#
#   tests/server/web.sh PROGRAM [PYTEST ARGS]
#
# Installs chromium when it is missing and may be installed, makes a Python environment under build/,
# leaves screenshots in build/web. Ends with 77 (skipped) when neither can be had here.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=$1
shift
venv=$root/build/python-web

. "$here/venv.sh"
if ! command -v chromium >/dev/null; then
    echo "h3av: installing chromium fonts-dejavu-core (for the tests of the page)"
    as_root=
    [ "$(id -u)" = 0 ] || as_root="sudo -n"
    { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends chromium fonts-dejavu-core; } >/dev/null 2>&1 || true
fi
if ! command -v chromium >/dev/null; then
    echo "skipped: chromium is not installed and cannot be here" >&2
    exit 77
fi
make_venv "$venv" "$here/web/requirements.txt" || exit 77

H3AV=$program
H3AV_SHOTS=$root/build/web
export H3AV H3AV_SHOTS OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}" # threads that wait do not slow down others
mkdir -p "$H3AV_SHOTS"
exec "$venv/bin/python" -m pytest -q -p no:cacheprovider -x "$here/web" "$@"
