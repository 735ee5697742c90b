#!/bin/sh
# Closes the metadata service to whoever is not one of @USERS@: it hands out the machine's role, and with it Slurm's key.
# Refused and not dropped, so that a program that tries goes on at once. Loaded as a whole or not at all.
set -eu
users="@USERS@"
allowed=$(for user in $users; do id -u "$user"; done | paste -sd,)

nft -f - <<RULES
table inet muster_metadata
delete table inet muster_metadata
table inet muster_metadata {
  chain out {
    type filter hook output priority filter
    ip daddr 169.254.169.254 meta skuid != { $allowed } reject
    ip6 daddr fd00:ec2::254 meta skuid != { $allowed } reject
  }
}
RULES
