"""Distribution metadata of modules that are not on disk. Apart from _install.py, as importlib.metadata takes long to import."""

import importlib.metadata
import sys

# The distribution of FlashAttention-3 is called otherwise than the module that programs import.
MODULES = {"flash_attn": ("flash_attn",), "flash_attn_3": ("flash_attn_3", "flash_attn_interface")}
EXTENSIONS = ("flash_attn_2_cuda", "flash_attn_3_cuda")


class Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says of a distribution that is not on disk."""

    def __init__(self, name: str, version: str):
        self.distribution, self.number = name, version

    def read_text(self, filename):
        if filename in ("METADATA", "PKG-INFO"):
            return (f"Metadata-Version: 2.1\nName: {self.distribution}\nVersion: {self.number}\n"
                    "Summary: provided by tilewise.install_as_flash_attn()\n")
        return "".join(f"{name}\n" for name in MODULES[self.distribution]) if filename == "top_level.txt" else None

    def locate_file(self, path):
        raise FileNotFoundError(f"{path}: {self.distribution} is provided by tilewise, in memory")


class Finder(importlib.metadata.DistributionFinder):
    """On sys.meta_path for the metadata, and for what of flash_attn is not served; the modules are in sys.modules."""

    def __init__(self, versions: dict, served: list):
        self.versions, self.served = versions, served

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] not in (*MODULES, *EXTENSIONS):
            return None
        # Who asks whether it is there (importlib.util.find_spec) hears no; an import hears why not.
        asking = sys._getframe().f_back and sys._getframe().f_back.f_back
        if asking is None or asking.f_code.co_name != "_find_and_load_unlocked":
            return None
        raise ModuleNotFoundError(f"No module named {fullname!r}: in the place of flash_attn, tilewise has attention and rotary "
                                  f"embedding alone ({', '.join(self.served)})", name=fullname)

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        name = context.name and context.name.lower().replace("-", "_")
        names = list(self.versions) if name is None else ["flash_attn_3" if name == "flash_attn_interface" else name]
        return [Distribution(name, self.versions[name]) for name in names if name in self.versions]
