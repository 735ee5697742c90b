#!/bin/sh
# Closes the metadata service to all users except those listed below: it hands out the machine's credentials, which can read
# Slurm's key. Connections are rejected, not dropped, so that programs fail at once. All rules are loaded, or none.
set -eu
users="@USERS@"
# shellcheck disable=SC2034  # used in the rules below
allowed=$(for user in $users; do id -u "$user"; done | paste -sd,)

nft -f - <<RULES
table inet muster_metadata
delete table inet muster_metadata
table inet muster_metadata {
  chain out {
    type filter hook output priority filter
@RULES@
  }
}
RULES
