#!/bin/sh
# Merges /etc/muster/hosts into /etc/hosts; with `--check`, the exit code tells whether that has been done.
# Other lines with one of our names are removed: with Debian's 127.0.1.1 line, a node would advertise its loopback address.
set -eu
new=$(mktemp)
trap 'rm -f "$new"' EXIT
awk '
  NR == FNR { ours[$2] = 1; block = block $0 "\n"; next }
  $0 == "# muster begin" { inside = 1 }
  !inside { claimed = 0; for (i = 2; i <= NF; i++) if ($i in ours) claimed = 1; if (!claimed) print }
  $0 == "# muster end" { inside = 0 }
  END { printf "# muster begin\n%s# muster end\n", block }
' /etc/muster/hosts /etc/hosts >"$new"
if [ "${1:-}" = --check ]; then exec cmp -s "$new" /etc/hosts; fi
# The file is written in place: in a container, /etc/hosts is a mount and cannot be replaced by a rename.
cmp -s "$new" /etc/hosts || cat "$new" >/etc/hosts
