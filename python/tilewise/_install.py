"""install_as_flash_attn(): `import flash_attn` and `import flash_attn_interface` find tilewise's functions."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

FA2 = "flash_attn"
FA3 = "flash_attn_interface"
VERSIONS = {FA2: "2.8.3", FA3: "3.0.0"}  # whose interfaces these are
_ours: dict[str, ModuleType] = {}


def _module(name: str, source: ModuleType, contents: dict, package: bool = False) -> ModuleType:
    """A module called `name` with `contents`, which are of tilewise's module `source`."""
    module = ModuleType(name, f"tilewise in the place of {name}.")
    module.__spec__ = ModuleSpec(name, loader=None, origin=source.__file__, is_package=package)
    module.__file__ = source.__file__
    if package:
        module.__path__ = []
    vars(module).update(contents)
    _ours[name] = sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    return module


def install_as_flash_attn(force: bool = False) -> None:
    """Makes `flash_attn` (FlashAttention-2) and `flash_attn_interface` (3) of this process tilewise's.

    Call it before anything imports them. With `__version__`, `__spec__`, distribution metadata, `flash_attn.bert_padding`,
    `flash_attn.layers.rotary`, `flash_attn.ops.triton.rotary`, the two modules without weights of `flash_attn.modules.mha`, and
    `flash_attn_3` as version 3's package. Importing any other part of flash_attn is an ImportError that says so. An installed
    one is not replaced without force=True. Calling it again changes nothing.

    >>> import importlib.util
    >>> if importlib.util.find_spec("torch"):
    ...     install_as_flash_attn(force=True)
    ...     from flash_attn import flash_attn_func
    """
    if sys.modules.get(FA2) is _ours.get(FA2) is not None:
        return
    if not force:
        for name in (FA2, FA3):
            if name in sys.modules or importlib.util.find_spec(name) is not None:
                raise RuntimeError(f"{name} is installed; accepted: install_as_flash_attn(force=True) to use tilewise instead "
                                   "of it")
    from . import _flash_modules, bert_padding, flash_attn, flash_attn_interface, rotary
    from ._metadata import Finder

    for name in [name for name in sys.modules if name.split(".")[0] in (FA2, FA3, "flash_attn_3")]:
        del sys.modules[name]  # of an installed one
    functions = {name: getattr(flash_attn, name) for name in flash_attn.__all__}
    _module(FA2, flash_attn, {"__version__": VERSIONS[FA2], **functions}, package=True)
    _module(f"{FA2}.flash_attn_interface", flash_attn, {**functions, **_below(flash_attn)})
    _module(f"{FA2}.bert_padding", bert_padding, _public(bert_padding))
    _module(f"{FA2}.layers", rotary, {}, package=True)
    _module(f"{FA2}.layers.rotary", rotary, _public(rotary))
    _module(f"{FA2}.ops", rotary, {}, package=True)
    _module(f"{FA2}.ops.triton", rotary, {}, package=True)
    _module(f"{FA2}.ops.triton.rotary", rotary, {"apply_rotary": rotary.apply_rotary})
    _module(f"{FA2}.modules", _flash_modules, {}, package=True)
    _module(f"{FA2}.modules.mha", _flash_modules, {name: getattr(_flash_modules, name)
                                                   for name in ("FlashCrossAttention", "FlashSelfAttention")})
    functions = {name: getattr(flash_attn_interface, name) for name in flash_attn_interface.__all__}
    functions |= {"__version__": VERSIONS[FA3], **_below(flash_attn_interface)}
    _module(FA3, flash_attn_interface, functions)
    _module("flash_attn_3", flash_attn_interface, functions, package=True)
    _module("flash_attn_3.flash_attn_interface", flash_attn_interface, functions)
    sys.meta_path.insert(0, Finder({FA2: VERSIONS[FA2], "flash_attn_3": VERSIONS[FA3]}, sorted(_ours)))


def _below(module: ModuleType) -> dict:
    """The functions below the public ones, under which sequence parallelism calls them."""
    found = {name: thing for name, thing in vars(module).items() if name.startswith("_flash_attn_")}
    return found | {f"_wrapped{name}": thing for name, thing in found.items()}


def _public(module: ModuleType) -> dict:
    return {name: thing for name, thing in vars(module).items()
            if getattr(thing, "__module__", None) == module.__name__ and not name.startswith("_")}
