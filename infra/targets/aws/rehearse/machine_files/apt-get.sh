#!/bin/bash
# Stands in for apt-get: machines of a rehearsal have no package mirror. Packages that the node image has are installed;
# others are stand-ins in /usr/lib/rehearsal/packages; any other package does not exist.
set -euo pipefail
home=/usr/lib/rehearsal
packages=$home/packages
lustre_list=/etc/apt/sources.list.d/muster-lustre.list
command=''
names=()
mode=install
archives=''
offered=()
while [ $# -gt 0 ]; do
  case $1 in
    -o)
      shift
      case $1 in Dir::Cache::archives=*) archives=${1#*=} ;; esac
      ;;
    --with-source)
      shift
      offered+=("${1##*/}")
      ;;
    --print-uris | --download-only) mode=${1#--} ;;
    -*) ;;
    *) if [ -z "$command" ]; then command=$1; else names+=("$1"); fi ;;
  esac
  shift
done

# User data fetches lists while it does other things, which take as long as on AWS: an installation waits only for what is
# left of the time in the table. Later fetches get little more than what has changed.
begin_lists() { [ -e $home/lists-began ] || date +%s.%N >$home/lists-began; }

print_lists_left() {
  if [ ! -e $home/lists-began ]; then echo 0; return; fi
  cat $home/lists-began <(date +%s.%N) $home/list-seconds $home/speed | xargs |
    awk '{ left = $3 - ($2 - $1); printf "%.2f\n", (left > 0 ? left / $4 : 0) }'
}

# Lustre's packages are in a repository of AWS, which apt reads if it is configured and has a key.
update() {
  if [ ! -e "$lustre_list" ]; then return; fi
  keyring=$(sed -n 's/.*signed-by=\([^] ]*\).*/\1/p' "$lustre_list")
  if [ ! -s "$keyring" ]; then echo "E: The repository of $lustre_list is not signed." >&2; exit 100; fi
  cp -rn "$home/lustre-repository/." "$packages/"
}

# Instead of a mirror, machines can be given files of packages, as the controller has downloaded them.
is_offered() {
  if [ ${#offered[@]} -eq 0 ]; then [ -d "$packages/$1" ]; else [[ " ${offered[*]}" == *" $1_"* ]]; fi
}

# What the mirror has, also of packages that this machine has; files need not be downloaded.
list_downloads() {
  for name in "${names[@]}"; do
    case $name in */*.deb) continue ;; esac
    if ! is_installed "$name" && [ ! -d "$packages/$name" ]; then echo "E: Unable to locate package $name" >&2; exit 100; fi
    echo "${name}_1.0_all.deb"
  done
}

is_installed() { dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed; }

register() { # NAME VERSION
  awk -v RS= -v ORS='\n\n' -v name="$1" '$0 !~ "^Package: " name "\n"' /var/lib/dpkg/status >/var/lib/dpkg/status.new
  mv /var/lib/dpkg/status.new /var/lib/dpkg/status
  {
    echo
    echo "Package: $1"
    echo "Status: install ok installed"
    echo "Maintainer: muster rehearsal"
    echo "Architecture: all"
    echo "Version: $2"
    echo "Description: stand-in of a rehearsal"
  } >>/var/lib/dpkg/status
}

# Slurm's programs of a version: those of the node image, or of Debian's packages of another release, without their scripts.
use_slurm() { # VERSION
  local release work file
  release=$(cut -d. -f1,2 <<<"$1")
  case $(slurmd -V) in *" $release."*) return ;; esac
  if [ ! -d "/rehearsal/slurm/$release" ]; then echo "E: this rehearsal has no Slurm $release" >&2; exit 100; fi
  work=$(mktemp -d)
  for file in "/rehearsal/slurm/$release"/*.deb; do dpkg-deb -x "$file" "$work"; done
  rm -rf /usr/lib/*/slurm-wlm
  # Programs that run keep their files.
  cp -a --remove-destination "$work/usr/." /usr/
  rm -rf "$work"
  ldconfig
}

case $command in
  update)
    begin_lists
    update
    exit 0
    ;;
  install) ;;
  *) echo "E: the stand-in of apt-get has no command ${command:-''}; allowed: update, install" >&2; exit 100 ;;
esac
if [ "$mode" != install ]; then
  files=$(list_downloads)
  case $mode in
    print-uris) awk -v q="'" '{ print q "http://mirror/" $0 q, $0, 0, "SHA256:0" }' <<<"$files" ;;
    download-only) (cd "$archives" && xargs touch <<<"$files") ;;
  esac
  exit
fi
missing=()
for name in "${names[@]}"; do
  case $name in
    */*.deb) missing+=("$name") ;;
    *)
      if is_installed "$name"; then continue; fi
      if ! is_offered "$name"; then echo "E: Unable to locate package $name" >&2; exit 100; fi
      missing+=("$name")
      ;;
  esac
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
if [ ${#offered[@]} -gt 0 ]; then
  tee -a $home/slept <$home/archive-seconds | xargs sleep
else
  { print_lists_left; cat $home/package-seconds; } | tee -a $home/slept | xargs sleep
fi
for name in "${missing[@]}"; do
  case $name in
    # A package that was built here: NAME_VERSION_ARCHITECTURE.deb. What it would contain is in the node image.
    */*.deb)
      IFS=_ read -r package version _ <<<"${name##*/}"
      if [ "$package" = slurm-smd ]; then use_slurm "$version"; fi
      register "$package" "$version"
      ;;
    *)
      cp -a "$packages/$name/." /
      register "$name" 1.0
      ;;
  esac
done
