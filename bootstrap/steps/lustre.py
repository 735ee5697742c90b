"""The Lustre client of AWS: its modules must be those of the running kernel, and the two must stay together."""

from __future__ import annotations

from bootstrap.action import Action, write
from bootstrap.facts.model import Facts
from cluster.inventory import Node

# https://docs.aws.amazon.com/fsx/latest/LustreGuide/install-lustre-client.html
KEY = "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
REPOSITORY = "https://fsx-lustre-client-repo.s3.amazonaws.com/ubuntu"
KEYRING = "/usr/share/keyrings/fsx-ubuntu-public-key.gpg"
INSTALL_S = 900.0
OPTIONS = "noatime,flock,lazystatfs"
MODULES = "lustre-client-modules"

# Many small requests in flight: with the defaults one node gets a fraction of what the servers can give.
MODPROBE = "options ptlrpc ptlrpcd_per_cpt_max=32\noptions ksocklnd credits=2560\n"
TUNING = tuple(
    f"lctl set_param -n {setting} || true"
    for setting in (
        "osc.*.max_rpcs_in_flight=64",
        "osc.*.max_dirty_mb=256",
        "osc.*.max_pages_per_rpc=1024",
        "mdc.*.max_rpcs_in_flight=64",
        "mdc.*.max_mod_rpcs_in_flight=50",
        "llite.*.max_read_ahead_mb=256",
        "llite.*.statahead_max=512",
    )
)


def client(facts: Facts, node: Node) -> list[Action]:
    todo = write(facts, "/etc/modprobe.d/muster.conf", MODPROBE)
    package = f"{MODULES}-{facts.kernel}"
    if package in facts.packages:
        return todo
    script = f"""\
export DEBIAN_FRONTEND=noninteractive
python3 - <<'FETCH' | gpg --dearmor --yes -o {KEYRING}
import sys, urllib.request
sys.stdout.buffer.write(urllib.request.urlopen("{KEY}", timeout=60).read())
FETCH
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
echo "deb [signed-by={KEYRING}] {REPOSITORY} $codename main" > /etc/apt/sources.list.d/fsx-lustre.list
apt-get -q update
apt-get -q install -y {package} || {{
  echo "no Lustre client for kernel {facts.kernel}" >&2
  exit 1
}}
apt-mark hold {package}
modprobe lustre"""
    fix = f"an image with a kernel that AWS has a client for; {node.name} runs {facts.kernel}"
    log = "/var/log/apt/term.log"
    return [*todo, Action(f"install {package}", script, timeout=INSTALL_S, log=log, fix=fix, slow=True)]
