"""The etcd3 package, made to load under any protobuf.

etcd3 0.12.0 brings message classes that were generated for a protobuf before version 4, and refuse to load under a later one. The
descriptions of the messages inside those files are still right. So the classes are made from these descriptions, in a pool of
their own, before etcd3 asks for them: its files are parsed for that, not executed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from ...protocol.errors import OperatorError

VERSION = "0.12.0"  # that this was written for
MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")  # the last needs the others
LACKING = "etcd as the store needs a Python package that is missing: pip install 'elasticctl[etcd]'"


def load() -> ModuleType:
    """The module `etcd3`. Raises OperatorError if it, or what it needs, is not installed, or is of another version."""
    if (loaded := sys.modules.get("etcd3")) is not None:
        return loaded
    spec = importlib.util.find_spec("etcd3")
    if spec is None or spec.origin is None:
        raise OperatorError(LACKING)
    try:
        _make_messages(Path(spec.origin).parent / "etcdrpc")
        etcd3 = importlib.import_module("etcd3")
    except ImportError as error:
        raise OperatorError(f"{LACKING} ({error})") from None
    if etcd3.__version__ != VERSION:
        raise OperatorError(f"etcd3 {etcd3.__version__} is installed, and {VERSION} is needed")
    return etcd3


def _make_messages(folder: Path) -> None:
    from google.protobuf import descriptor_pool
    from google.protobuf.internal import builder

    pool = descriptor_pool.DescriptorPool()  # its own, as "rpc.proto" is a name that others use
    for name in MODULES:
        module = ModuleType(f"etcd3.etcdrpc.{name}")
        described = pool.AddSerializedFile(_description(folder / f"{name}.py"))
        builder.BuildMessageAndEnumDescriptors(described, module.__dict__)
        builder.BuildTopDescriptorsAndMessages(described, name, module.__dict__)
        sys.modules[module.__name__] = module


def _description(path: Path) -> bytes:
    """The serialized file descriptor in a generated file: `serialized_pb=_b('...')`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            value: Any = node.value
            return ast.literal_eval(value.args[0]).encode("latin1")  # type: ignore[no-any-return]
    raise ImportError(f"{path} has no description of messages")
