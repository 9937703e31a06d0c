# make_venv DIR REQUIREMENTS: a Python environment with these packages; nothing to do when it is
# there. Two builds may ask for it at once. Read by run.sh and web.sh.
make_venv() {
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "h3av: installing python3 python3-venv (for the tests of the server)"
        as_root=
        [ "$(id -u)" = 0 ] || as_root="sudo -n"
        { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive apt-get install \
            -y -qq --no-install-recommends python3 python3-venv; } >/dev/null 2>&1 || true
    fi
    if ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "skipped: python3 with venv is not installed" >&2
        return 1
    fi
    mkdir -p "$(dirname "$1")"
    touch "$1.lock" 2>/dev/null || true # perhaps another user's already
    (
        flock 9
        if [ -f "$1/ok" ] && cmp -s "$1/ok" "$2"; then exit 0; fi
        echo "h3av: installing the Python packages of $2 in $1"
        rm -rf "$1"
        if python3 -m venv "$1" && "$1/bin/pip" install -q --disable-pip-version-check -r "$2"; then
            cp "$2" "$1/ok"
        else
            echo "skipped: the packages of $2 cannot be installed here" >&2
            exit 1
        fi
    ) 9<"$1.lock"
}
