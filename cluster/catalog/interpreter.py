"""The pinned Python of machines whose distribution has none that fits: a relocatable CPython with its headers.

Ubuntu 22.04 has Python 3.10, and its python3.11 is a release candidate. torch.compile builds C code against Python.h,
so the headers must belong to the interpreter that runs the training.
"""

from __future__ import annotations

from cluster.inventory import Interpreter, InterpreterArchive

_RELEASES = "https://github.com/astral-sh/python-build-standalone/releases/download"
# Addresses and checksums as in crates/uv-python-managed/download-metadata.json in the source of uv 0.13.7.
# 3.13 is also the Python of Debian 13, with which the trainer is tested.
PYTHON = Interpreter(
    version="3.13.18",
    archives={
        "x86_64": InterpreterArchive(
            url=f"{_RELEASES}/20261026/cpython-3.13.18%2B20261026-x86_64-unknown-linux-gnu-install_only_stripped.tar.gz",
            sha256="df15fe60d3ff55bf9dcf25824b5572756bb8816ff93865a273d3301d7066a8b7",
        ),
        "aarch64": InterpreterArchive(
            url=f"{_RELEASES}/20261026/cpython-3.13.18%2B20261026-aarch64-unknown-linux-gnu-install_only_stripped.tar.gz",
            sha256="578d9da1983463ffb0c8c98ab0da2f18177f44069328eb0af847860c1eb05c3e",
        ),
    },
)
