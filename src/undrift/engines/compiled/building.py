"""Compiles the C kernel at its first use, into the user's cache, with the machine's C compiler.

Without a compiler, or if anything fails, there is no kernel, and torch's operators do the work.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path

import torch
from platformdirs import user_cache_path

COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fPIC", "-shared")
"""Nothing here lets the compiler assume that numbers are finite or reorder sums."""
TYPES: dict[torch.dtype, tuple[str, ...]] = {torch.float32: ("-DSINGLE",), torch.float64: ()}
COMPILE_SECONDS = 60
"""A compiler that takes longer is stopped."""
OFF = "UNDRIFT_NO_KERNEL"
"""The environment variable that turns the kernel off, whatever its value."""


@cache
def kernel(dtype: torch.dtype) -> ctypes.CDLL | None:
    """The compiled kernel for a type of numbers, or None if there is none on this machine."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if dtype not in TYPES or compiler is None or os.name != "posix" or OFF in os.environ:
        return None
    try:
        source = files(__package__).joinpath("dense.c").read_text(encoding="utf-8")
        path = _folder() / f"dense-{_digest(source, compiler, str(dtype))}.so"
        if not path.exists():
            _compile(compiler, source, TYPES[dtype], path)
        library = ctypes.CDLL(str(path))
        library.scratch_bytes.restype = ctypes.c_int64
        library.train.restype = None
        return library
    except (OSError, subprocess.SubprocessError, AttributeError):
        return None


def _folder() -> Path:
    return user_cache_path("undrift", appauthor=False) / "kernels"


def _digest(*parts: str) -> str:
    """A name that changes with the source, the compiler, the flags and the processor.

    Home folders are shared between machines, and -march=native is for the one that compiles.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        processor = platform.processor()
    text = "\n".join([*parts, *FLAGS, platform.machine(), processor])
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _compile(compiler: str, source: str, options: tuple[str, ...], path: Path) -> None:
    """Compile into a file of another name and rename it: other processes see a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, built = Path(folder, "dense.c"), Path(folder, "dense.so")
        code.write_text(source, encoding="utf-8")
        command = [compiler, *FLAGS, *options, str(code), "-o", str(built), "-lm"]
        subprocess.run(command, check=True, capture_output=True, timeout=COMPILE_SECONDS)
        built.replace(path)
