"""Small files in the form that MNIST is published in."""

import struct


def write(folder, train, test):
    """IDX files of images and labels, both of one byte a number."""
    for (x, y), name in ((train, "train"), (test, "t10k")):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(x))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(y))


def idx(array):
    return b"\0\0\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
