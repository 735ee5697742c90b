#!/bin/sh
# Stands in for cloud-init: waits for the network, reads the user data from the metadata service and runs it once.
set -eu
metadata=http://169.254.169.254/latest
done=/var/lib/cloud/instance/user-data-ran
if [ -e "$done" ]; then exit 0; fi
until token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 300' "$metadata/api/token"); do sleep 0.2; done
mkdir -p /var/lib/cloud/instance/scripts
curl -sf -m 10 -H "X-aws-ec2-metadata-token: $token" "$metadata/user-data" >/var/lib/cloud/instance/scripts/part-001
chmod 700 /var/lib/cloud/instance/scripts/part-001
touch "$done"
exec /var/lib/cloud/instance/scripts/part-001
