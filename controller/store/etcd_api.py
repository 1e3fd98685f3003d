"""Loader of the etcd3 package that works with any version of protobuf.

The generated message classes in etcd3 0.12.0 fail to load with protobuf 4 and later. The message descriptors inside the
generated files are still correct. So this module builds the classes from these descriptors, in a separate descriptor
pool, before etcd3 imports them. The generated files are parsed, not executed.
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

VERSION = "0.12.0"  # the only version that this loader supports
MODULES = ("kv_pb2", "auth_pb2", "rpc_pb2")  # in this order: the last one depends on the others
LACKING = "etcd as the store needs a Python package that is missing: pip install 'elasticctl[etcd]'"


def load() -> ModuleType:
    """Return the module `etcd3`.

    Raises OperatorError if etcd3 or a dependency of it is not installed, or etcd3 has another version than `VERSION`.
    """
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

    pool = descriptor_pool.DescriptorPool()  # separate, because other packages register a file "rpc.proto" too
    for name in MODULES:
        module = ModuleType(f"etcd3.etcdrpc.{name}")
        described = pool.AddSerializedFile(_description(folder / f"{name}.py"))
        builder.BuildMessageAndEnumDescriptors(described, module.__dict__)
        builder.BuildTopDescriptorsAndMessages(described, name, module.__dict__)
        sys.modules[module.__name__] = module


def _description(path: Path) -> bytes:
    """Return the serialized file descriptor of a generated file: the argument `serialized_pb=_b('...')`.

    Raises ImportError if the file has none.
    """
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            value: Any = node.value
            return ast.literal_eval(value.args[0]).encode("latin1")  # type: ignore[no-any-return]
    raise ImportError(f"{path} has no description of messages")
