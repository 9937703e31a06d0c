#!/bin/bash
# One queue for many servers, on a PostgreSQL of its own: workers killed at random, then two h3av serve on one
# folder, one of which is killed while it generates.
#   tests/mpi/queue.sh PATH-TO-queue PATH-TO-h3av [brief]      brief: without the two servers, for slow builds
# Ends with 77 (skipped) where PostgreSQL or python3 is missing.
set -u
queue=$(realpath "$1") h3av=$(realpath "$2") here=$(dirname "$(realpath "$0")")
bin=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | tail -1)
[ -n "$bin" ] && [ -x "$bin/initdb" ] || { echo "queue: PostgreSQL is not installed; skipped"; exit 77; }
command -v python3 >/dev/null || { echo "queue: python3 is not installed; skipped"; exit 77; }
ldd "$h3av" | grep -q libpq || { echo "queue: built without libpq; skipped"; exit 77; }
work=$(mktemp -d /tmp/h3av-queue.XXXXXX) || exit 1
as=() # PostgreSQL refuses to run as root
if [ "$(id -u)" = 0 ]; then
    as=(runuser -u postgres --)
    chown postgres "$work"
fi
chmod 755 "$work"
stop() { "${as[@]}" "$bin/pg_ctl" -D "$work/db" -m immediate stop >/dev/null 2>&1; rm -rf "$work"; }
trap stop EXIT
cd "$work" || exit 1
"${as[@]}" "$bin/initdb" -D "$work/db" -U h3av --auth=trust -E UTF8 --locale=C --no-sync >/dev/null 2>init.log || { cat init.log; exit 1; }
"${as[@]}" "$bin/pg_ctl" -D "$work/db" -w -t 300 -o "-k $work -c listen_addresses='' -c fsync=off" -l "$work/db/log" start >/dev/null \
    || { cat "$work/db/log"; exit 1; }
url="postgresql:///postgres?host=$work&user=h3av"
export OMP_WAIT_POLICY=passive
"$queue" "$work/file.sqlite" "$work/none" 0 || exit 1
H3AV_LEASE_SECONDS=1 timeout 1200 "$queue" "$url" "$work/ends" 400 || exit 1
[ "${3:-}" = brief ] && exit 0
H3AV_LEASE_SECONDS=1 H3AV="$h3av" URL="$url" timeout 1400 python3 "$here/queue.py" "$work/data"
