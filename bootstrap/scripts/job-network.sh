#!/bin/sh
# Lets users' programs on compute nodes accept TCP connections only from programs of the same user and of the system, on
# this node and on others. Who opens a connection is in its first packet, where only the kernel of the sending node can
# write: in the identification field of IPv4, which has no other use in a packet that is not divided, and in the flow
# label of IPv6. Whose program accepts it is known when the kernel sends the answer, which is dropped if the two differ;
# the next attempt is rejected, so that programs fail after a second. UDP, UDP-Lite, SCTP and DCCP are not checked like
# this: users' programs can send nothing to a port from 1024 on of this node or of a private address.
# All rules are loaded, or none. If the kernel lacks nftables, or a part of it, nothing is loaded, and $STATE says so; any
# other error is one.
set -eu
STATE=/run/muster/job-network
mkdir -p "${STATE%/*}"
rm -f $STATE

fail() {
  case $1 in
    *"not supported"* | *"No such file or directory"*) ;;
    *) echo "$1" >&2 && exit 1 ;;
  esac
  echo "open: $(echo "$1" | head -n 1)" >$STATE
  echo "warning: users' jobs can connect to each other: $1" >&2
  exit 0
}

error=$(nft list tables 2>&1 >/dev/null) || fail "$error"
error=$(nft -f - 2>&1 <<'RULES'
table inet muster_jobs
delete table inet muster_jobs
table inet muster_jobs {
  set users {
    type uid
    elements = { @USERS@ }
  }
  set private {
    type ipv4_addr
    flags interval
    elements = { @PRIVATE@ }
  }
  # The connections that a user, or the system, has just opened to this node.
@SETS@
  # Connections whose answer was dropped.
  set refused { type ipv4_addr . inet_service . ipv4_addr . inet_service; flags dynamic,timeout; timeout 5s; size 65535; }
  set refused6 { type ipv6_addr . inet_service . ipv6_addr . inet_service; flags dynamic,timeout; timeout 5s; size 65535; }

  chain out {
    type filter hook output priority mangle
    tcp flags & (fin | syn | rst | ack) == syn jump sign
@CHECK_ANSWERS@
    meta skuid @users meta l4proto { 17, 33, 132, 136 } th dport >= 1024 jump datagram
  }
  chain sign {
    ip id set 0
    ip6 flowlabel set 0
    meta skuid { 0-999, 60001-65535 } goto sign_system
@SIGN@
    # Everyone else who has an id stays nobody.
    meta skuid >= 0 return
    # The kernel's own connections, such as those to NFS servers, have no owner but a port that users cannot have. Older
    # kernels do not show the owner of multipath TCP connections either: these stay nobody's.
    tcp sport < 1024 goto sign_system
  }
  chain sign_system {
    ip id set @SYSTEM@
    ip6 flowlabel set @SYSTEM@
  }
  chain datagram {
    oif "lo" reject
    meta nfproto ipv6 reject
    ip daddr @private reject
  }
  # A container with a network of its own is nobody.
  chain through {
    type filter hook forward priority mangle
    tcp flags & (fin | syn | rst | ack) == syn ip id set 0
    tcp flags & (fin | syn | rst | ack) == syn ip6 flowlabel set 0
  }
@INPUT@
  chain note {
    ip saddr . tcp sport . ip daddr . tcp dport @refused reject with tcp reset
    ip6 saddr . tcp sport . ip6 daddr . tcp dport @refused6 reject with tcp reset
    # Another user may have had this connection before.
@FORGET@
@NOTE@
  }
  chain answer {
@ANSWER@
    meta skuid @users jump refuse
    meta skuid != @users return
    # Servers without an owner: the kernel's, and all while more connections are opened than a program accepts. Programs
    # repeat an attempt that is not answered.
    tcp sport { 0-1023, 2049, 6817-6820 } return
    drop
  }
  chain refuse {
    add @refused { ip daddr . tcp dport . ip saddr . tcp sport }
    add @refused6 { ip6 daddr . tcp dport . ip6 saddr . tcp sport }
    drop
  }
}
RULES
) || fail "$error"
echo closed >$STATE
