#!/bin/bash
# Stands in for sha256sum of standard input: a stand-in that was downloaded counts as the file that it stands for.
set -euo pipefail
if [ $# -gt 0 ]; then exec /usr/bin/sha256sum "$@"; fi
read -r digest _ < <(/usr/bin/sha256sum)
original=$(sed -n "s/^$digest //p" /usr/lib/rehearsal/digests)
echo "${original:-$digest}  -"
