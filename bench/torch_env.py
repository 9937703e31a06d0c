"""The environment that PyTorch needs: it brings a cuDNN, a cuBLAS and an NCCL of its own and refuses others, so folders of
LD_LIBRARY_PATH that hold those are left out. The rest of it stays: a driver may be found there only."""
import glob, os, sys

OWN = ("libcudnn", "libcublas", "libnccl", "libcudart")


def clean(env):
    """A copy of `env` without them."""
    kept = [p for p in env.get("LD_LIBRARY_PATH", "").split(":")
            if p and not any(glob.glob(os.path.join(p, f"{n}*.so*")) for n in OWN)]
    env = {k: v for k, v in env.items() if k != "LD_LIBRARY_PATH"}
    return dict(env, LD_LIBRARY_PATH=":".join(kept)) if kept else env


def ensure():
    """Starts this very program anew when its environment is another one. Before `import torch`."""
    env = clean(os.environ)
    if env.get("LD_LIBRARY_PATH") != (os.environ.get("LD_LIBRARY_PATH") or None):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.argv], env)
