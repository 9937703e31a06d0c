# shellcheck shell=bash
# For scripts that run programs which were built elsewhere: puts the folders of the CUDA libraries that the system does not
# find by itself into LD_LIBRARY_PATH. Looks beside CUDA, then among Python's packages, then everywhere. To be sourced.
find_gpu_lib() {
    local p sites
    p=$(ldconfig -p 2>/dev/null | awk -v l="$1" '$1 == l { print $NF; exit }') || true
    [ -n "$p" ] && { echo "$p"; return; }
    sites=$(python3 -c 'import site, sys; print(*{*site.getsitepackages(), *sys.path[1:]})' 2>/dev/null) || true
    for p in "${CUDA_HOME:-/usr/local/cuda}"/lib64 /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib \
        $(for s in $sites; do echo "$s"/nvidia/*/lib "$s"/nvidia/*/*/lib; done); do
        [ -e "$p/$1" ] && { echo "$p/$1"; return; }
    done
    timeout 30 find / -xdev -name "$1" -not -path '*/stubs/*' 2>/dev/null | head -1 || true
}
for l in libcudart.so.13 libcublasLt.so.13 libcudnn.so.9; do
    p=$(find_gpu_lib $l) || true
    echo "$l: ${p:-not found}" >&2
    case ":${LD_LIBRARY_PATH:-}:" in *":$(dirname "${p:-/}"):"*) continue ;; esac
    [ -n "$p" ] && LD_LIBRARY_PATH=$(dirname "$p")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
done
export LD_LIBRARY_PATH
