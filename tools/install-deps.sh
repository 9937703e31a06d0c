#!/bin/sh
# Installs what building, testing and running h3av needs, with apt and nothing else. Does nothing when
# everything is there; otherwise says what it installs. Asks no questions.
#   tools/install-deps.sh [run|check]
set -eu
what=${1:-run}
packages="gcc g++ make cmake ninja-build pkg-config libjansson-dev libavformat-dev libavcodec-dev
 libavutil-dev libswscale-dev libswresample-dev libmicrohttpd-dev libsqlite3-dev"
[ "$what" = check ] && packages="$packages clang libclang-rt-14-dev libomp-dev libcmocka-dev ffmpeg python3 python3-venv openmpi-bin libopenmpi-dev libpq-dev"

missing=
for p in $packages; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
done
[ -z "$missing" ] && exit 0

echo "h3av: installing$missing"
root=
[ "$(id -u)" = 0 ] || root="sudo -n"
export DEBIAN_FRONTEND=noninteractive
if ! command -v apt-get >/dev/null; then
    echo "h3av: no apt-get here; install these packages (or their like) yourself:$missing" >&2
    exit 1
fi
# A fresh machine has no package lists yet; an old list may name versions that are gone.
$root apt-get update -qq || echo "h3av: apt-get update failed; going on with the lists at hand" >&2
# shellcheck disable=SC2086
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
