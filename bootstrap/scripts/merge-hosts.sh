#!/bin/sh
# Merges /etc/muster/hosts into /etc/hosts; with `--check`, the exit code tells whether that has been done.
# Our names are removed from other lines: with Debian's 127.0.1.1 line, a node would advertise its loopback address. Such
# a line becomes a comment, from which it is restored before each merge and by journal-restore.sh. What remains of it
# stands in our block.
set -eu
NAMES=${MUSTER_NAMES:-/etc/muster/hosts}
HOSTS=${MUSTER_HOSTS:-/etc/hosts}

merge() {
  awk '
    FILENAME == ARGV[1] { ours[$2] = 1; block = block $0 "\n"; next }
    $0 == "# muster begin" { inside = 1 }
    !inside { sub(/^# muster replaced: /, ""); merge($0) }
    $0 == "# muster end" { inside = 0 }
    END { printf "# muster begin\n%s%s# muster end\n", block, remaining }

    function merge(line,   fields, count, i, others, removed, comment) {
      count = split(line, fields)
      for (i = 2; i <= count && fields[1] !~ /^#/; i++) {
        if (fields[i] ~ /^#/) comment = 1
        if (!comment && fields[i] in ours) removed = 1
        else others = others " " fields[i]
      }
      if (!removed) { print line; return }
      print "# muster replaced: " line
      if (others !~ /^( #.*)?$/) remaining = remaining fields[1] others "\n"
    }
  ' "$NAMES" "$HOSTS"
}

if [ "${1:-}" = --check ]; then
  merge | cmp -s - "$HOSTS"
  exit
fi
new=$(mktemp)
trap 'rm -f "$new"' EXIT
merge >"$new"
# The file is written in place: in a container, /etc/hosts is a mount and cannot be replaced by a rename.
cmp -s "$new" "$HOSTS" || cat "$new" >"$HOSTS"
