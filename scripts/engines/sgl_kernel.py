"""Stands in for sgl_kernel, whose CPU build is not on PyPI. Everything can be imported, nothing computed: with
--attention-backend torch_native and --sampling-backend pytorch nothing is asked of it."""
import importlib.abc
import importlib.machinery
import sys
import types

__version__ = "0.4.10"


def _refusal(name):
    def refuse(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} is not there on CPU")

    refuse.__name__ = name
    return refuse


def _attribute(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _refusal(name)


__getattr__ = _attribute


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, fullname, path, target=None):
        if fullname.startswith(__name__ + ".") and not fullname.endswith(".scalar_type"):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = _attribute
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(_Submodules())
