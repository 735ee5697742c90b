#!/bin/sh
# Stands in for `gpg --homedir FOLDER --batch --quiet --import FILE` and `--export FINGERPRINT`: the key that was downloaded is
# a stand-in too, and counts as the one that is asked for.
set -eu
case "$*" in
  "--homedir $2 --batch --quiet --import $6")
    sed -e '/^-----/d' -e '/^$/d' -e '/^=/d' "$6" | base64 -d >"$2/stand-in"
    [ -s "$2/stand-in" ] || { echo "gpg: no valid OpenPGP data found." >&2; exit 2; } ;;
  "--homedir $2 --batch --quiet --export $6") cat "$2/stand-in" ;;
  *) echo "gpg stand-in: $*" >&2; exit 2 ;;
esac
