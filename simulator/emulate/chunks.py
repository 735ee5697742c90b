"""Where an array is cut for a ring of ranks: decides which rank's numbers are added first, and so the last bits."""

from __future__ import annotations

# https://github.com/pytorch/gloo/blob/main/gloo/allreduce.h, kMaxSegmentSize
_LARGEST_SEGMENT = 1 << 20


def bounds(elements: int, ranks: int, element_bytes: int) -> list[int]:
    """`ranks + 1` places; chunk c lies between place c and c + 1, and the last ones may be empty.

    As gloo cuts: chunks are whole numbers of segments, at least two each, so that one is sent while another is added
    (https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc, ring).
    """
    size = elements * element_bytes
    largest = element_bytes * max(1, _LARGEST_SEGMENT // element_bytes)
    segments = _up(max(-(-size // largest), 2 * ranks), ranks)
    segment = _up(-(-size // segments), element_bytes) // element_bytes
    chunk = segments // ranks * segment
    return [min(elements, place * chunk) for place in range(ranks + 1)]


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
