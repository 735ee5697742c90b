#!/bin/sh
# muster: fetches the bundle by its hash and runs its set-up. Runs at the first boot; may be run again, also with another
# bundle. Contains no secrets: everyone who can call the metadata service can read it.
# shellcheck disable=SC2012,SC2086,SC2154,SC2317  # settings are filled in, functions run by `attempt`, names are plain
set -u
umask 022
export DEBIAN_FRONTEND=noninteractive
@SETTINGS@
home=/opt/muster/$digest
pinned=/opt/muster/python/$python_sha256
early=/run/muster/early
log=/var/log/muster/node.log
last=/run/muster/last
end=/etc/systemd/system/muster-cluster-end.service
mkdir -p /var/log/muster "$early/infra/targets/aws/node" /opt/muster
[ "$0" = /opt/muster/user-data.sh ] || install -m 700 "$0" /opt/muster/user-data.sh

@FILES@

early() { PYTHONPATH=$early python3 -m infra.targets.aws.node.early "$@"; }

# Runs a step; the last line of its output is what a failure report contains.
attempt() {
  step=$1
  shift
  echo "muster: $step" >&2
  "$@" >"$last" 2>&1 && return 0
  cat "$last" >&2
  failed
}

failed() {
  line=$(grep -v '^$' "$last" | tail -n 1)
  echo "muster: failed at $step: $line" >&2
  early report "$region" "$nodes/${name:-$role}" "$digest" failed "$step" "${line:-no output}; log: $log" >&2
  # Without its service, nothing would end this machine. One of an earlier run has the same time.
  [ "$step" != end ] || systemctl -q is-active muster-cluster-end || systemctl --no-block poweroff
  exit 1
}

# Ubuntu 22.04 calls a release candidate python3.11.
is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11, 0, "final"))' 2>/dev/null; }

find_python() {
  for python in "$pinned/bin/python3" python3 python3.13 python3.12 python3.11; do
    if is_recent "$python"; then command -v "$python" >/run/muster/python && return 0; fi
  done
  return 1
}

install_python() {
  find_python && return 0
  rm -rf "$pinned" && mkdir -p "$pinned" && early download "$python_url" "$pinned.tar.gz" "$python_sha256" &&
    tar -x -z -f "$pinned.tar.gz" -C "$pinned" --strip-components 1 --no-same-owner && rm -f "$pinned.tar.gz"
  find_python
}

unpack() {
  rm -rf "$home" && mkdir -p "$home" && tar -x -f "$home.tar" -C "$home" --no-same-owner && rm -f "$home.tar"
}

# Bundles with the same packages share an environment, and baked images have it. No package index has to be reachable, and
# the image needs no pip.
make_environment() {
  python=$(cat /run/muster/python)
  id=$({ "$python" -V && cat "$home/bootstrap/unpack_wheels.py" "$home/bootstrap/requirements.lock"; } | sha256sum | cut -c 1-16)
  environment=/opt/muster/environments/$id
  [ -e "$environment/complete" ] || unpack_environment || return 1
  touch "$environment" && ln -sfn "$environment" "$home/venv" && ln -sfn "$home" /opt/muster/current &&
    ls -1dt /opt/muster/[0-9a-f]*[0-9a-f]/ | tail -n +4 | xargs -r rm -rf &&
    ls -1dt /opt/muster/environments/*/ | tail -n +4 | xargs -r rm -rf
}

unpack_environment() {
  rm -rf "$environment" && "$python" -m venv --without-pip "$environment" &&
    "$python" "$home/bootstrap/unpack_wheels.py" "$home/wheels" "$home/bootstrap/requirements.lock" "$environment" &&
    touch "$environment/complete"
}

# Slurm's user cannot write bytecode, so the programs that launch nodes would compile at every start. Nothing waits for this.
compile_programs() {
  nice "$home/venv/bin/python" -m compileall -q "$home" "$home/venv/lib" >/dev/null 2>&1 </dev/null 9>&- &
}

# Reports its own failures and then exits with 3, or with 4 if the machine restarts and runs the copy of this file; every
# other failure is reported here.
apply() {
  cd "$home" || return 1
  { "$home/venv/bin/python" -m infra.targets.aws.node.$program --bundle "$digest" 2>&1; echo $? >/run/muster/code; } | tee "$last"
  return "$(cat /run/muster/code)"
}

# Whoever created the cluster may be gone by then. A service ends the machine at the time in its unit, which is all that it
# needs: also after a restart, at once if it is late, and if the time cannot be read. The clock is read again and again,
# because it may be set after the boot. An image may contain the unit of another machine, so the service does nothing on a
# machine with another instance id; but a machine that never learns its id ends, too: running on would cost more.
end_later() {
  reader=$(cat "$early/infra/targets/aws/node/imds.py" - <<'MUSTER_READER' | base64 -w 0
import time
for _ in range(60):
    try:
        print(read("instance-id"))
        break
    except OSError:
        time.sleep(5)
MUSTER_READER
  )
  instance=$(echo "$reader" | base64 -d | python3 -)
  {
    printf '[Service]\nEnvironment=ENDS_AT=%s INSTANCE=%s READER=%s\n' "$ends_at" "$instance" "$reader"
    cat <<'MUSTER_UNIT'
ExecStart=/bin/sh -c 'while [ "$$(date +%%s)" -lt "$$ENDS_AT" ]; do sleep 5; done; id=$$(echo "$$READER" | base64 -d | python3 -); [ -z "$$id" ] || [ "$$id" = "$${INSTANCE:-$$id}" ] || exec sleep infinity; systemctl --no-block poweroff'
Restart=always
RestartSec=5
OOMScoreAdjust=-1000
[Unit]
StartLimitIntervalSec=0
[Install]
WantedBy=multi-user.target
MUSTER_UNIT
  } >"$end" || return 1
  # A service of the image may be running with the values of another machine.
  systemctl daemon-reload && systemctl enable -q muster-cluster-end && systemctl restart --no-block muster-cluster-end
}

never_end() {
  [ -e "$end" ] || return 0
  systemctl disable -q --now muster-cluster-end && rm -f "$end" && systemctl daemon-reload
}

# The controller stores packages for machines of other roles. Those that find none there, and the controller itself, need
# package lists, which take longer to fetch than a node's packages to install. The step that needs either waits for the rest.
# An image of muster's own has an environment, and nothing to install.
fetch_packages() {
  ls /opt/muster/environments >/dev/null 2>&1 && return 0
  printf '%s\n' @LIST_SETTINGS@ >@APT_CONF@
  (
    @LOCK_LISTS@
    case $role in compute | login) early get "$region" "$bucket" "@ARCHIVE_KEY@" @ARCHIVE@ && exit ;; esac
    @FETCH_LISTS@
  ) >/run/muster/packages.log 2>&1 </dev/null 9>&- &
}

main() {
  # A machine that is no node ends itself, in case nobody is there any more who would.
  [ -z "$name" ] || systemd-run -q --unit=muster-end --on-active=3h systemctl --no-block poweroff
  if [ -n "$ends_at" ]; then attempt end end_later; else attempt no-end never_end; fi
  echo "muster: $role of $cluster, bundle $digest, $(date -u +%FT%TZ)"
  if [ -z "$name" ]; then
    attempt name early name "$tag"
    name=$(cat "$last")
  fi
  fetch_packages
  attempt python install_python
  if [ ! -e "$home/venv/bin/activate" ] || [ "$(readlink /opt/muster/current)" != "$home" ]; then
    attempt fetch early get "$region" "$bucket" "$key" "$home.tar" "$sha256"
    attempt unpack unpack
    attempt environment make_environment
    [ "$role" != controller ] || compile_programs
  fi
  step=apply
  code=0
  apply || code=$?
  case $code in 0 | 3) ;; 4) code=0 ;; *) failed ;; esac
  return "$code"
}

# One at a time: a second run may start before the first boot has finished.
{ (flock 9 && main) 9>/run/muster/lock; echo $? >/run/muster/result; } 2>&1 | tee -a "$log"
exit "$(cat /run/muster/result)"
