"""The files that build an exported network with the SDK: a Makefile and a CMake file.

The firmware's linker script puts objects named *ok_device_*.o into DDR; a large kernel elsewhere overflows the
instruction memory. Names of files and functions begin with the network's, so that one firmware can hold several.
"""

from __future__ import annotations

MAKE = """\
# Builds what npuc exported for the SDK of BM1684; nothing here needs to be edited.
#
#     make kernel CROSS=arm-none-eabi- OKKERNEL=/path/of/okk.h    the object that the firmware links
#     make host BMLIB=/path/of/bmlib                               the program that launches it
CROSS ?= arm-none-eabi-
OKKERNEL ?= okkernel/include
BMLIB ?= bmlib
HOST_LIBS ?= -lbmlib

kernel: {name}_ok_device_kernel.o
host: {name}_launch

{name}_ok_device_kernel.o: {name}_ok_device_kernel.c
\t$(CROSS)gcc -std=c99 -Wall -Wextra -Werror -O2 -I$(OKKERNEL) -c -o $@ $<

{name}_launch: {name}_launch.cpp
\t$(CXX) -std=c++11 -Wall -Wextra -Werror -O2 -I$(BMLIB)/include -o $@ $< -L$(BMLIB)/lib $(HOST_LIBS)

.PHONY: kernel host
"""
CMAKE = """\
# Builds what npuc exported for the SDK of BM1684: the device's object library and the host's program.
cmake_minimum_required(VERSION 3.13)
project({name} C CXX)
set(OKKERNEL okkernel/include CACHE PATH "folder of okk.h")
set(BMLIB bmlib CACHE PATH "folder of bmlib")
add_library({name}_kernel OBJECT {name}_ok_device_kernel.c)
set_target_properties({name}_kernel PROPERTIES C_STANDARD 99)
target_include_directories({name}_kernel PRIVATE ${{OKKERNEL}})
target_compile_options({name}_kernel PRIVATE -Wall -Wextra -Werror)
add_executable({name}_launch {name}_launch.cpp)
set_target_properties({name}_launch PROPERTIES CXX_STANDARD 11 CXX_STANDARD_REQUIRED ON)
target_include_directories({name}_launch PRIVATE ${{BMLIB}}/include)
target_compile_options({name}_launch PRIVATE -Wall -Wextra -Werror)
target_link_directories({name}_launch PRIVATE ${{BMLIB}}/lib)
target_link_libraries({name}_launch PRIVATE bmlib)
"""


def build_files(name: str) -> dict[str, bytes]:
    """The Makefile and CMakeLists.txt, by file name."""
    return {"Makefile": MAKE.format(name=name).encode(), "CMakeLists.txt": CMAKE.format(name=name).encode()}
