#!/bin/sh
# Adds the repository of Lustre clients; the step `packages` installs the one for the running kernel. If there is none,
# installs the newest kernel that has one, with its client, and requests a restart; or leaves that to `packages`, too.
# Set by the caller: RUNNING (the kernel), URL, KEY_URL and FINGERPRINT (of the package repository and its key), PYTHON (with
# our code), FETCH_LISTS, the script that fetches package lists, SWITCH, the script that holds and starts a kernel, and
# CHOSEN, the file that tells `packages` which kernel to install, or an empty string.
set -eu
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
keyring=/usr/share/keyrings/muster-lustre-client.gpg
attempted=/var/lib/muster/kernel
boot=$(cat /proc/sys/kernel/random/boot_id)

say() { echo "lustre: $*"; }

fail() {
  echo "lustre: $*" >&2
  exit 1
}

keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT
"$PYTHON" - "$KEY_URL" >"$keys/downloaded" <<'FETCH'
import sys, urllib.request
sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=60).read())
FETCH
# Only the pinned key gets into the keyring, whatever else the file contains.
gpg --homedir "$keys" --batch --quiet --import "$keys/downloaded" || fail "$KEY_URL is not a file of keys"
gpg --homedir "$keys" --batch --quiet --export "$FINGERPRINT" >"$keys/pinned" || true
[ -s "$keys/pinned" ] || fail "$KEY_URL does not contain the pinned key $FINGERPRINT: not used"
# Export also finds a primary key of somebody else that has the pinned key as its subkey.
primary=$(gpg --homedir "$keys" --batch --quiet --with-colons --show-keys "$keys/pinned" |
  awk -F: '$1 == "pub" { primary = 1 } $1 == "fpr" && primary { print $10; primary = 0 }')
[ "$primary" = "$FINGERPRINT" ] || fail "$KEY_URL has another primary key than the pinned $FINGERPRINT: not used"
install -m 644 "$keys/pinned" "$keyring"
# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
echo "deb [signed-by=$keyring] $URL $codename main" >/etc/apt/sources.list.d/muster-lustre.list
sh -e -c "$FETCH_LISTS"
names=$(apt-cache pkgnames)
kernel=$(echo "$names" | "$PYTHON" -m bootstrap.lustre_kernels "$RUNNING")

# The choice of an earlier attempt must not outlive it.
if [ -n "$CHOSEN" ]; then rm -f "$CHOSEN"; fi
if [ "$kernel" = "$RUNNING" ]; then exit 0; fi
# A restart that was requested since the last boot has not happened yet: request it again.
case $(cat "$attempted" 2>/dev/null || true) in
  "$kernel $boot") ;;
  "$kernel "*) fail "this machine restarted for kernel $kernel but runs $RUNNING; check GRUB, or use another image" ;;
esac
say "no client for kernel $RUNNING: installing kernel $kernel and restarting"
if [ -n "$CHOSEN" ]; then
  mkdir -p "$(dirname "$CHOSEN")"
  echo "$kernel" >"$CHOSEN"
  exit 0
fi
# With the headers, DKMS builds the modules of driver and fabric for the new kernel.
apt-get -q install -y --no-install-recommends "linux-image-$kernel" "linux-headers-$kernel" "lustre-client-modules-$kernel"
KERNEL=$kernel RUNNING=$RUNNING sh -eu -c "$SWITCH"
