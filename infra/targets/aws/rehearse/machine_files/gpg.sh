#!/bin/sh
# Stands in for `gpg --dearmor --yes -o FILE`.
set -eu
file=${4:-}
[ "$*" = "--dearmor --yes -o $file" ] || { echo "gpg stand-in: $*" >&2; exit 2; }
sed -e '/^-----/d' -e '/^$/d' -e '/^=/d' | base64 -d >"$file"
[ -s "$file" ] || { echo "gpg: no valid OpenPGP data found." >&2; exit 2; }
