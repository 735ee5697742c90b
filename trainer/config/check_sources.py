"""Rules about where the samples come from: mixtures, remote folders and their cache."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from trainer.config.errors import ConfigProblem
from trainer.config.mixture import MixtureEntry, parse_mixture
from trainer.config.schema import Config

REMOTE_SCHEMES = ("s3", "https", "http")


def check_mixture(config: Config) -> Iterator[ConfigProblem]:
    """Check that a mixture is of token shards, is the only source, and has a valid weight for each path."""
    data = config.data
    if not data.mixture:
        return
    if data.kind != "tokens":
        message = f"is set, but data.kind is {data.kind}; only token shards can be mixed"
        yield ConfigProblem("data.mixture", message, "set data.kind to tokens, or remove data.mixture")
    if data.path:
        message = f"is set, but so is data.path={data.path}"
        yield ConfigProblem("data.mixture", message, "add that path to the mixture, or remove one of them")
    yield from (entry for entry in parse_mixture(data.mixture) if isinstance(entry, ConfigProblem))


def explain_address(address: str) -> ConfigProblem | None:
    """Return what is wrong with the address of a remote folder; the problem has no setting and repeats no secrets.

    A path is printed, recorded and stored in checkpoints, so it must not contain a password or a signature.
    """
    try:
        parts = urlsplit(address)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:  # its text would repeat parts of the address
        return ConfigProblem(
            "", "an address has an invalid server or port", "use s3://BUCKET/FOLDER or https://SERVER/FOLDER"
        )
    shown = f"{parts.scheme}://{host}{parts.path}"
    if parts.username is not None or parts.password is not None:
        fix = "leave them out; S3 takes credentials from a role, AWS_PROFILE or AWS_ACCESS_KEY_ID"
        return ConfigProblem("", f"{shown} contains a user name or a password", fix)
    if "?" in address or "#" in address:
        fix = "give the address of the folder alone; signed addresses are not supported"
        return ConfigProblem("", f"{shown} is followed by ? or #", fix)
    if any(character.isspace() or not character.isprintable() for character in address):
        return ConfigProblem("", f"{shown!r} contains a space or a control character", "write spaces as %20")
    return None


def check_remote(config: Config) -> Iterator[ConfigProblem]:
    """Check that remote folders can be read and that the settings of their cache fit together."""
    data = config.data
    paths = {"data.path": [data.path], "evaluation.path": [config.evaluation.path]}
    paths["data.mixture"] = [entry.path for entry in parse_mixture(data.mixture) if isinstance(entry, MixtureEntry)]
    remote = [(where, path) for where, listed in paths.items() for path in listed if "://" in path]
    for where, path in remote:
        if problem := explain_address(path):
            yield ConfigProblem(where, problem.message, problem.fix)
            continue
        if urlsplit(path).scheme not in REMOTE_SCHEMES:
            allowed = ", ".join(f"{scheme}://" for scheme in REMOTE_SCHEMES)
            yield ConfigProblem(where, f"{path} has an unknown scheme", f"use a local folder, or one of {allowed}")
        if data.kind == "images":
            yield ConfigProblem(where, f"{path} is remote, but only token shards are", "copy the images to a folder")
    if data.shuffle_shards and data.kind != "tokens":
        message = f"{data.shuffle_shards}, but data.kind is {data.kind}"
        yield ConfigProblem("data.shuffle_shards", message, "set it to 0; it is for token shards")
    for name, value in (("cache", data.cache), ("cache_gb", data.cache_gb)):
        if value and not remote:
            yield ConfigProblem(f"data.{name}", f"{value}, but no path is remote", "leave it out, or use s3://")
    if data.cache_gb and not data.shuffle_shards:
        message = f"{data.cache_gb:g}, but every batch needs all shards, because their samples are shuffled together"
        yield ConfigProblem("data.cache_gb", message, "set data.shuffle_shards, such as to 8, or this to 0")
    if data.cache_gb and config.evaluation.share:
        message = f"{data.cache_gb:g}, but evaluation.share reads the end of every shard"
        yield ConfigProblem("data.cache_gb", message, "set evaluation.path instead of evaluation.share, or this to 0")
