#!/bin/sh
# Stands in for uname: the kernel is that of the instance's image, not of the machine that runs the rehearsal.
[ "$*" = -r ] || exec /usr/bin/uname "$@"
cat /usr/lib/rehearsal/kernel
