"""EasyNPU in hardware: a synthesizable core that runs compiled programs (Amaranth; extra `npuc[rtl]`).

Importing raises ArtefactError (E507) without Amaranth.
"""

from importlib import import_module

from npuc.errors import ArtefactError

REMEDY = "pip install 'npuc[rtl]', and a C++ compiler (g++, clang++, or the one named in CXX)"
try:
    import_module("amaranth")
except ImportError as error:
    raise ArtefactError("E507", f"Amaranth cannot be imported: {error}", remedy=REMEDY) from None
