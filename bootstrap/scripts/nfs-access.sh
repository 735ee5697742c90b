#!/bin/sh
# Closes NFS servers, and the TLS tunnels to them, to all users except root: EFS believes the user id that a client sends,
# so a program that speaks NFS itself could act as root. Mounts still work, because the kernel connects as root.
# Containers with a network of their own are closed too. Connections are rejected, not dropped, so that programs fail at
# once. All rules are loaded, or none.
set -eu

nft -f - <<'RULES'
table inet muster_nfs
delete table inet muster_nfs
table inet muster_nfs {
  chain out {
    type filter hook output priority filter
    meta l4proto { tcp, udp } th dport { @PORTS@ } jump root_only
  }
  chain root_only {
    meta skuid 0 accept
    meta skuid != 0 reject
    # Older kernels do not show the owner of multipath TCP connections: without an owner, none is opened.
    tcp flags & (fin | syn | rst | ack) == syn reject
  }
  chain through {
    type filter hook forward priority filter
    meta l4proto { tcp, udp } th dport 2049 reject
  }
}
RULES
