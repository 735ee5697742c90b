#!/bin/bash
# Stands in for apt-get: machines of a rehearsal have no package mirror. Packages that the node image has are installed;
# others are stand-ins in /usr/lib/rehearsal/packages; any other package does not exist.
set -euo pipefail
packages=/usr/lib/rehearsal/packages
command=''
names=()
while [ $# -gt 0 ]; do
  case $1 in
    -o) shift ;;
    -*) ;;
    *) if [ -z "$command" ]; then command=$1; else names+=("$1"); fi ;;
  esac
  shift
done
case $command in
  update) exit 0 ;;
  install) ;;
  *) echo "E: the stand-in of apt-get has no command ${command:-''}; allowed: update, install" >&2; exit 100 ;;
esac
for name in "${names[@]}"; do
  if dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed; then continue; fi
  if [ ! -d "$packages/$name" ]; then echo "E: Unable to locate package $name" >&2; exit 100; fi
  sleep "$(cat /usr/lib/rehearsal/package-seconds)"
  cp -a "$packages/$name/." /
  {
    echo
    echo "Package: $name"
    echo "Status: install ok installed"
    echo "Maintainer: muster rehearsal"
    echo "Architecture: all"
    echo "Version: 1.0"
    echo "Description: stand-in of a rehearsal"
  } >>/var/lib/dpkg/status
done
