"""Stand-ins for GPUs: servers described by text files, and a substitute of the driver's library that plays them.

For tests, and for `elasticctl up --gpu-model`. The agent of such a server is the same as any other. Its configuration
names another library in place of the driver's, another directory in place of /sys, and makes workers compute on the
CPU. The names of the GPUs contain the word stand-in, so that every display shows it.
"""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

from ...protocol.errors import UserError
from . import library, sysfs

OPTIONS = ("nvml_library", "sysfs", "worker_device")  # options of an agent's configuration that select stand-ins
DIRECTORY = "standins"
DESCRIPTION = "server.txt"


def models_of(given: str) -> tuple[str, ...]:
    """Return the models in a list with commas. Raises UserError for an unknown name, or if there is no C compiler."""
    library.compiler()
    models = tuple(model.strip().lower() for model in given.split(","))
    for model in models:
        library.description(model)
    return models


def lay_out(directory: Path, server: str, model: str) -> dict[str, str | int]:
    """Make the files that the agent of a server reads. Returns the options of its configuration. Raises UserError.

    Existing files are kept: a user may have changed the description.
    """
    above = directory / DIRECTORY
    own = above / f"{server}-{model}"
    built, copy, described = above / library.LIBRARY, own / library.LIBRARY, own / DESCRIPTION
    try:
        own.mkdir(parents=True, exist_ok=True)
        if not built.exists():
            library.build(above)
        if not copy.exists():
            shutil.copyfile(built, copy)
        if not described.exists():
            serial = zlib.crc32(str(own).encode())
            text = f"{library.description(model)}serial {serial}  # no other server has these UUIDs\n"
            sysfs.write(text, own / "sys")
            described.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or own}: {error.strerror}") from None
    return {"nvml_library": str(copy), "sysfs": str(own / "sys"), "worker_device": "cpu"}
