"""Protobuf messages from one-line descriptions, in a descriptor pool of their own.

No generated code and no registration in protobuf's global pool, so tensorflow and onnx may be imported beside it,
before or after. Only fields that are used are described; all others are kept as they are, so writing a message back
loses nothing."""

from __future__ import annotations

import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "int64": _Field.TYPE_INT64, "int32": _Field.TYPE_INT32, "uint64": _Field.TYPE_UINT64, "uint32": _Field.TYPE_UINT32,
    "float": _Field.TYPE_FLOAT, "double": _Field.TYPE_DOUBLE, "bool": _Field.TYPE_BOOL,
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "fixed32": _Field.TYPE_FIXED32,
}  # fmt: skip
_LINE = re.compile(r"(\w+): ?(.*)")
_PART = re.compile(r"(\d+) (\w+) (\w+)([*+]?)$")


def messages(package: str, description: str) -> dict[str, Any]:
    """Message classes by name. A line is `Name: 1 field type, 2 field type*, ...`; `*` repeats, `+` repeats packed.

    A type is a scalar or the name of another line; `Name = LABEL:0 ...` is an enumeration. Map fields are described as
    what they are: repeated entries."""
    # proto3, which refuses strings that are not text; with optional fields, so that a zero that was written stays.
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    enums = set(re.findall(r"^(\w+) = ", description, re.M))
    for line in filter(None, map(str.strip, description.splitlines())):
        if " = " in line:
            name, values = line.split(" = ")
            enum = file.enum_type.add(name=name)
            for constant, value in (entry.split(":") for entry in values.split()):
                enum.value.add(name=constant, number=int(value))
            continue
        name, fields = _LINE.fullmatch(line).groups()  # type: ignore[union-attr]
        message = file.message_type.add(name=name)
        for part in filter(None, map(str.strip, fields.split(","))):
            number, field, kind, repeat = _PART.fullmatch(part).groups()  # type: ignore[union-attr]
            label = _Field.LABEL_REPEATED if repeat else _Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=int(number), label=label)
            if repeat:
                added.options.packed = repeat == "+"
            if kind in _SCALARS:
                added.type = _SCALARS[kind]
            else:
                added.type = _Field.TYPE_ENUM if kind in enums else _Field.TYPE_MESSAGE
                added.type_name = f".{package}.{kind}"
            if not repeat and added.type != _Field.TYPE_MESSAGE:
                added.proto3_optional, added.oneof_index = True, len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}
