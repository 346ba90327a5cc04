"""The smallest ONNX files, written field by field (onnx.proto), so that tests need no package that writes them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

FLOAT, INT64 = 1, 7


def one_node(
    file: Path,
    operation: str,
    input_shape: Sequence[int],
    output_shape: Sequence[int],
    constant: np.ndarray,
    told: Mapping[str, str],
) -> Path:
    """A network of one node: `operation(images, constant)`, or `operation(constant)` where it takes one argument.

    told: the metadata that an exporter leaves.
    """
    arguments = ["constant"] if operation == "Identity" else ["images", "constant"]
    node = b"".join(_bytes(1, name.encode()) for name in arguments) + _bytes(2, b"output0") + _text(4, operation)
    graph = (
        _bytes(1, node)
        + _text(2, "graph")
        + _bytes(5, _tensor("constant", constant))
        + _bytes(11, _declared("images", input_shape))
        + _bytes(12, _declared("output0", output_shape))
    )
    model = _number(1, 8) + _bytes(7, graph) + _bytes(8, _text(1, "") + _number(2, 13))
    model += b"".join(_bytes(14, _text(1, key) + _text(2, value)) for key, value in told.items())
    file.write_bytes(model)
    return file


def _tensor(name: str, values: np.ndarray) -> bytes:
    kind = INT64 if values.dtype == np.int64 else FLOAT
    sizes = b"".join(_number(1, size) for size in values.shape)
    return sizes + _number(2, kind) + _text(8, name) + _bytes(9, values.tobytes())


def _declared(name: str, shape: Sequence[int]) -> bytes:
    sizes = b"".join(_bytes(1, _number(1, size)) for size in shape)
    return _text(1, name) + _bytes(2, _bytes(1, _number(1, FLOAT) + _bytes(2, sizes)))


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])
