"""Codes what Terraform and a provider say to each other: the parts of protobuf and of MessagePack that they use."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final


class _Unknown:
    """A value that Terraform knows only after it has applied something."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = _Unknown()


# ---- protobuf: https://protobuf.dev/programming-guides/encoding/ -----------------------------------------------


def message(*fields: tuple[int, bool | int | str | bytes]) -> bytes:
    """Return a message with these fields; a field may come several times, and zeros are left out as in proto3."""
    return b"".join(_field(number, value) for number, value in fields)


def _field(number: int, value: bool | int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(int(value)) if value else b""
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    coded = bytearray()
    while value > 0x7F:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*coded, value))


def fields(content: bytes) -> dict[int, bytes]:
    """Return the fields of a message that are bytes, strings or messages; of one that comes again, the last."""
    return {number: value for number, value in _fields(content) if isinstance(value, bytes)}


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(content):
        key, at = _read_varint(content, at)
        value, at = _read_varint(content, at)
        if key & 7 == 2:
            yield key >> 3, content[at : at + value]
            at += value
        elif key & 7 == 0:
            yield key >> 3, value
        else:
            raise ValueError(f"no field of Terraform's protocol has wire type {key & 7}")


def _read_varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


# ---- MessagePack, as Terraform codes its values: docs/plugin-protocol/object-wire-format.md ----------------------

_SIZED: Final = {0xD9: ("B", str), 0xDA: ("H", str), 0xDB: ("I", str), 0xC4: ("B", bytes), 0xC5: ("H", bytes)}
_SIZED |= {0xDC: ("H", list), 0xDD: ("I", list), 0xDE: ("H", dict), 0xDF: ("I", dict)}
_NUMBERS: Final = {0xCA: "f", 0xCB: "d", 0xCC: "B", 0xCD: "H", 0xCE: "I", 0xCF: "Q"}
_NUMBERS |= {0xD0: "b", 0xD1: "h", 0xD2: "i", 0xD3: "q"}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_EXTENSIONS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}  # of a fixed size; 0xC7 says its size


def unpacked(content: bytes) -> Any:
    """Return the value that is packed in these bytes."""
    value, _ = _unpack(content, 0)
    return value


def _unpack(content: bytes, at: int) -> tuple[Any, int]:
    code, at = content[at], at + 1
    if code < 0x80 or code >= 0xE0:
        return (code if code < 0x80 else code - 0x100), at
    if code in _CONSTANTS:
        return _CONSTANTS[code], at
    if code in _NUMBERS:
        form = f">{_NUMBERS[code]}"
        return struct.unpack_from(form, content, at)[0], at + struct.calcsize(form)
    if code in _EXTENSIONS or code == 0xC7:
        size = _EXTENSIONS[code] if code in _EXTENSIONS else content[at]
        return UNKNOWN, at + 1 + (code == 0xC7) + size  # whatever is known of it is a refinement
    if code < 0xC0:
        kind, size = (dict, code & 15) if code < 0x90 else (list, code & 15) if code < 0xA0 else (str, code & 31)
    else:
        form, kind = _SIZED[code]
        size = struct.unpack_from(f">{form}", content, at)[0]
        at += struct.calcsize(form)
    return _collected(kind, size, content, at)


def _collected(kind: type, size: int, content: bytes, at: int) -> tuple[Any, int]:
    if kind in (str, bytes):
        taken = content[at : at + size]
        return (taken.decode() if kind is str else taken), at + size
    items = []
    for _ in range(size * (2 if kind is dict else 1)):
        item, at = _unpack(content, at)
        items.append(item)
    return (dict(zip(items[::2], items[1::2], strict=True)) if kind is dict else items), at


def packed(value: Any) -> bytes:
    """Return a value as Terraform reads it."""
    if value is UNKNOWN or value is None or isinstance(value, bool):
        return {UNKNOWN: b"\xd4\x00\x00", None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return struct.pack(">Bq", 0xD3, value)
    if isinstance(value, float):
        return struct.pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
    if isinstance(value, dict):
        items = b"".join(packed(key) + packed(each) for key, each in value.items())
        return struct.pack(">BI", 0xDF, len(value)) + items
    return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))
