"""A bundle of a few programs of the node that creates it, to run jobs in without building an image."""

from __future__ import annotations

PROGRAMS = ("bash", "cat", "chmod", "env", "hostname", "id", "ls", "mkdir", "setsid", "sleep", "sort", "touch")


def create_bundle(folder: str) -> str:
    """Return a script that creates a bundle, owned by root, without most of the folders that a container needs.

    Its root has a file MARKER, its working folder is /srv/own, and its environment sets FROM.
    """
    return f"""
mkdir -p {folder}/rootfs/srv/own && cd {folder}/rootfs && touch MARKER srv/own/file
for program in {" ".join(PROGRAMS)}; do
  ldd /usr/bin/$program | grep -o '/[^ )]*' | while read -r library; do cp --parents -Lu "$library" .; done
  cp --parents -L /usr/bin/$program .
done
ln -sfn usr/bin bin && ln -sf bash usr/bin/sh
cat >{folder}/config.json <<'JSON'
{{"root": {{"path": "rootfs"}}, "process": {{"env": ["PATH=/usr/bin", "FROM=image"], "cwd": "/srv/own"}}}}
JSON
chmod -R a+rX,go-w {folder}
"""
