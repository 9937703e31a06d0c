"""diffusers' models: with random weights, and from its wheel, unpacked nowhere, on a machine that has PyTorch and little
else. The packages that diffusers imports for files, downloads and pictures are replaced by empty ones that may be named and
not used, and so is its own package of loaders; what its models compute is its own code."""
import importlib.abc, importlib.machinery, importlib.util, os, sys, types

EMPTY = ("huggingface_hub", "safetensors", "PIL", "requests", "filelock", "regex", "httpx", "tqdm")
OWN_EMPTY = ("diffusers.loaders", "diffusers.dependency_versions_check")
# Folders whose __init__ imports every model there is.
FOLDERS = ("diffusers.models.transformers", "diffusers.models.autoencoders", "diffusers.models.unets")


class Named(type):
    """A class of which any attribute is another one, for annotations and decorators."""
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return named(name)

    def __or__(cls, other):
        return cls
    __ror__ = __or__


def named(name):
    return Named(name, (), {"__new__": lambda cls, *a, **_: a[0] if len(a) == 1 and callable(a[0]) else object.__new__(cls)})


class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.startswith("diffusers"):
            return type(name, (), {}) if name[0].isupper() else lambda *_, **__: None  # base classes, checks
        return "" if name.isupper() else named(name)  # a constant is a text


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if top in EMPTY and isinstance(sys.modules.get(top, self), (Empty, Finder)):  # what is installed has no empty parts
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        module.__version__ = "0"


def stand_ins(wheel):
    import importlib.metadata
    if not importlib.util.find_spec("importlib_metadata"):
        sys.modules["importlib_metadata"] = importlib.metadata
    for home in ("packaging", "pip._vendor.packaging", "setuptools._vendor.packaging"):
        try:
            sys.modules["packaging"] = importlib.import_module(home)
            sys.modules["packaging.version"] = importlib.import_module(home + ".version")
            break
        except ImportError:
            pass
    for name in OWN_EMPTY:
        sys.modules[name] = Empty(name)
    for name in FOLDERS:
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(wheel, *name.split("."))]


def use(wheel):
    """From now on `import diffusers.models...` works: from an installation where one does, else from the wheel. Returns
    which, for reports."""
    try:
        import diffusers
        import diffusers.models.transformers.transformer_minimax_h3
        return f"diffusers {diffusers.__version__}"
    except Exception:  # not there, or one of the many packages that it imports
        for name in [n for n in sys.modules if n.split(".")[0] == "diffusers"]:
            del sys.modules[name]
    if not wheel:
        return None
    sys.meta_path.append(Finder())  # behind the others: what is installed is taken
    stand_ins(wheel)
    sys.path.insert(0, wheel)
    import diffusers
    return f"diffusers {diffusers.__version__}, its models from the wheel"


def filled(make, dtype, device="cpu"):
    """make() without memory for its parameters, then each of them from one pool of random numbers, in the types that
    loading in `dtype` gives."""
    import torch
    register = torch.nn.Module.register_parameter

    def empty(self, name, p):
        register(self, name, p)
        if p is not None:
            self._parameters[name] = torch.nn.Parameter(p.to("meta"), requires_grad=False)

    torch.nn.Module.register_parameter = empty
    try:
        m = make()
    finally:
        torch.nn.Module.register_parameter = register
    wide = set(getattr(m, "_keep_in_fp32_modules", None) or ())
    pool = torch.randn(1 << 22, device=device) * 0.02
    for name, p in list(m.named_parameters()):
        path = name.split(".")
        t = torch.empty(p.shape, dtype=torch.float32 if wide & set(path) else dtype, device=device)
        flat, src = t.view(-1), pool.to(t.dtype)
        if "norm" in name and t.ndim == 1 or name.endswith("weight_g"):
            flat.fill_(1)
        else:
            for i in range(0, flat.numel(), src.numel()):
                flat[i:i + src.numel()] = src[:min(src.numel(), flat.numel() - i)]
        owner = m
        for q in path[:-1]:
            owner = getattr(owner, q)
        owner._parameters[path[-1]] = torch.nn.Parameter(t, requires_grad=False)
    for module in m.modules():
        for name, b in module._buffers.items():
            if b is not None:
                module._buffers[name] = b.to(device)
    return m.eval()
