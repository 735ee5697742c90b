"""The archive of the distribution's packages that a controller downloads for the other machines of its cloud.

With it, a machine needs neither package lists, which take longer to fetch and to read than its packages take to
install, nor the package mirror. A machine for which it does not suffice uses both.
"""

from __future__ import annotations

NAME = "nodes-$(. /etc/os-release; echo $ID-$VERSION_ID)-$(uname -m)"
"""Shell text with the name of the archive: that of another distribution or architecture is of no use to a machine."""
ARCHIVE = "/var/cache/muster.tar"
"""File on a machine with the archive, until its packages are installed; incomplete if its download failed."""
_FOLDER = "/var/cache/muster-packages"
_WITHOUT_LISTS = (
    "-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null "
    "-o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache="
)


def render_installation(apt_get: str, arguments: str, lock: str, fallback: str) -> str:
    """Return shell text that installs from the archive, or with `fallback` on a machine for which it does not suffice.

    `lock` is a file that is locked while user data fetches the archive.
    """
    files = f"$(printf -- ' --with-source %s' {_FOLDER}/*.deb)"
    return f"""\
install_from_archive() {{
  mkdir -p {_FOLDER} && tar -x -f {ARCHIVE} -C {_FOLDER} --no-same-owner &&
    {apt_get} {_WITHOUT_LISTS} install -y {arguments}{files}
}}
if [ -e {lock} ]; then exec 8>{lock}; flock 8; exec 8>&-; fi
installed=
if [ ! -e {ARCHIVE} ]; then
  echo 'the cluster has no archive of packages for this machine; using the package mirror'
elif install_from_archive; then
  installed=yes
else
  echo 'the archive of packages does not suffice for this machine; using the package mirror'
fi
rm -rf {ARCHIVE} {_FOLDER}
if [ -z "$installed" ]; then
{fallback.rstrip()}
fi
"""
