"""Version numbers as tools print them."""

import re


def numbers(text: str) -> tuple[int, ...]:
    """The first dotted number in a text such as `v3.259.0` or `go version go1.26.8 linux/amd64`, else ()."""
    match = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def at_least(text: str, wanted: str) -> bool:
    found = numbers(text)
    return bool(found) and found >= numbers(wanted)
