#!/bin/sh
# Stands in for `apt-cache pkgnames`: the packages that the stand-in of apt-get can install.
[ "$*" = pkgnames ] || exec /usr/bin/apt-cache "$@"
ls /usr/lib/rehearsal/packages
