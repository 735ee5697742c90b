# Installs EFA's driver, libfabric and NCCL plugin from the vendor's archive. Set by the caller: ADDRESS, SHA256, and
# FETCH_LISTS (script that fetches package lists).
# shellcheck shell=sh
set -eu
export DEBIAN_FRONTEND=noninteractive
folder=$(mktemp -d -p /var/tmp)
trap 'rm -rf "$folder"' EXIT
python3 - "$ADDRESS" "$folder/archive" <<'FETCH'
import shutil, sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=60) as source, open(sys.argv[2], "wb") as archive:
    shutil.copyfileobj(source, archive)
FETCH
actual=$(sha256sum "$folder/archive" | cut -d ' ' -f 1)
if [ "$actual" != "$SHA256" ]; then
  echo "$ADDRESS has sha256 $actual, expected $SHA256: not the archive that was reviewed" >&2
  exit 1
fi
tar -xzf "$folder/archive" -C "$folder"
# The installer installs what it needs with apt. A machine that has its packages from the controller's archive has no lists;
# without a mirror, the image may have everything.
sh -e -c "$FETCH_LISTS" || echo 'package lists cannot be fetched; installing without them'
cd "$folder/aws-efa-installer"
./efa_installer.sh -y --no-verify
# The package does not replace a module that is already loaded.
modprobe -r efa 2>/dev/null || true
modprobe efa
ldconfig
