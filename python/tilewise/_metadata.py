"""Distribution metadata of modules that are not on disk. Apart from _install.py, as importlib.metadata takes long to import."""

import importlib.metadata


class Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says of a distribution that is not on disk."""

    def __init__(self, name: str, version: str):
        self.distribution, self.number = name, version

    def read_text(self, filename):
        if filename in ("METADATA", "PKG-INFO"):
            return (f"Metadata-Version: 2.1\nName: {self.distribution}\nVersion: {self.number}\n"
                    "Summary: provided by tilewise.install_as_flash_attn()\n")
        return f"{self.distribution}\n" if filename == "top_level.txt" else None

    def locate_file(self, path):
        raise FileNotFoundError(f"{path}: {self.distribution} is provided by tilewise, in memory")


class Finder(importlib.metadata.DistributionFinder):
    """On sys.meta_path for the metadata alone; the modules are in sys.modules."""

    def __init__(self, versions: dict):
        self.versions = versions

    def find_spec(self, fullname, path=None, target=None):
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):
        names = self.versions if context.name is None else [context.name.lower().replace("-", "_")]
        return [Distribution(name, self.versions[name]) for name in names if name in self.versions]
