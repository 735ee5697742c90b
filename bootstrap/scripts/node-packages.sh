#!/bin/sh
# Downloads the distribution's packages that the other machines need, with everything that these depend on, and stores them
# as one archive, from which machines install without package lists. Runs on the controller at each boot and every day, so that
# new machines get security updates. If no package has changed, it downloads and stores nothing.
# Set by the caller: NAMES (packages), SLURM (archive with our build of Slurm, whose dependencies are downloaded too; it need
# not exist), MEMBERS (names of the files in it), WORK (a folder of this machine), NAME (of the archive to store), FETCH_LISTS
# (script that fetches package lists), and STORE, a command that shares an archive: `$STORE NAME store PATH`.
# shellcheck disable=SC2046,SC2086,SC2153  # lists of names and patterns
set -euf
export DEBIAN_FRONTEND=noninteractive
mkdir -p "$WORK"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/packages/partial" "$folder/slurm"
# apt downloads as a user of its own.
chmod 755 "$folder" "$folder/packages"
# Without the controller's own packages, of which other machines may have other versions.
: >"$folder/status"
if [ -e "$SLURM" ]; then tar -x -f "$SLURM" -C "$folder/slurm" --wildcards $MEMBERS; fi
resolve() {
  apt-get -q -o Acquire::Retries=5 -o Dir::State::status="$folder/status" -o Dir::Cache::archives="$folder/packages" \
    install -y "$@" --no-install-recommends $NAMES $(find "$folder/slurm" -name '*.deb')
}

sh -e -c "$FETCH_LISTS"
resolve --print-uris >"$folder/printed"
# Slurm's own packages are printed too, as files in a folder that has another name in each run.
grep "^'" "$folder/printed" | grep -v "^'file:$folder/" >"$folder/list"
if cmp -s "$folder/list" "$WORK/stored"; then exit 0; fi
resolve --download-only
rm -rf "$folder/packages/partial" "$folder/packages/lock"
tar -c -f "$folder/archive.tar" -C "$folder/packages" .
$STORE "$NAME" store "$folder/archive.tar"
mv "$folder/list" "$WORK/stored"
