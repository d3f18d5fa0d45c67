"""install_as_flash_attn(): `import flash_attn` and `import flash_attn_interface` find tilewise's functions."""

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

FA2 = "flash_attn"
FA3 = "flash_attn_interface"
VERSIONS = {FA2: "2.8.3", FA3: "3.0.0"}  # whose interfaces these are
_ours: dict[str, ModuleType] = {}


def _module(name: str, contents: dict, package: bool = False) -> ModuleType:
    module = ModuleType(name, f"tilewise in the place of {name}.")
    spec = ModuleSpec(name, loader=None, origin="tilewise", is_package=package)
    module.__spec__ = spec
    if package:
        module.__path__ = []
    vars(module).update(contents)
    _ours[name] = sys.modules[name] = module
    return module


def install_as_flash_attn(force: bool = False) -> None:
    """Makes `flash_attn` (FlashAttention-2) and `flash_attn_interface` (3) of this process tilewise's.

    Call it before anything imports them. With `__version__`, `__spec__`, distribution metadata, `flash_attn.bert_padding`
    and `flash_attn.layers.rotary`. An installed one is not replaced without force=True. Calling it again changes nothing.

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
    from . import bert_padding, flash_attn, flash_attn_interface, rotary
    from ._metadata import Finder

    functions = {name: getattr(flash_attn, name) for name in flash_attn.__all__}
    root = _module(FA2, {"__version__": VERSIONS[FA2], **functions}, package=True)
    interface = _module(f"{FA2}.flash_attn_interface", functions)
    padding = _module(f"{FA2}.bert_padding", _public(bert_padding))
    layers = _module(f"{FA2}.layers", {}, package=True)
    layers.rotary = _module(f"{FA2}.layers.rotary", _public(rotary))
    root.flash_attn_interface, root.bert_padding, root.layers = interface, padding, layers
    _module(FA3, {"__version__": VERSIONS[FA3], **{name: getattr(flash_attn_interface, name)
                                                   for name in flash_attn_interface.__all__}})
    sys.meta_path.insert(0, Finder(VERSIONS))


def _public(module: ModuleType) -> dict:
    return {name: thing for name, thing in vars(module).items() if callable(thing) and not name.startswith("_")}
