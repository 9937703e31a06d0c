# make_venv DIR REQUIREMENTS: a Python environment with these packages; nothing to do when it is
# there. Two builds may ask for it at once. Read by run.sh and web.sh.
make_venv() {
    if ! command -v python3 >/dev/null || ! python3 -c 'import venv, ensurepip' 2>/dev/null; then
        echo "skipped: python3 with venv is not installed" >&2
        return 1
    fi
    mkdir -p "$(dirname "$1")"
    (
        flock 9
        if [ -f "$1/ok" ] && cmp -s "$1/ok" "$2"; then exit 0; fi
        rm -rf "$1"
        if python3 -m venv "$1" && "$1/bin/pip" install -q --disable-pip-version-check -r "$2"; then
            cp "$2" "$1/ok"
        else
            echo "skipped: the packages of $2 cannot be installed here" >&2
            exit 1
        fi
    ) 9>"$1.lock"
}
