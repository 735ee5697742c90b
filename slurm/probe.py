"""Which nodes answer, asked from the controller: slurmd takes connections, and the machine says hello."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.inventory import Node

# A hung node still accepts connections; that its sshd says nothing gives it away.
_PROBE = """port=$(scontrol show config | sed -n 's/^SlurmdPort *= *//p')
for node in {nodes}; do
  address=${{node#*:}}
  timeout 3 bash -c "</dev/tcp/$address/$port && exec 3<>/dev/tcp/$address/22 && read -r _ <&3" 2>/dev/null ||
    echo "${{node%%:*}}" &
done
wait"""


def probe(nodes: Iterable[Node]) -> str:
    """Shell text that prints the names of those that do not answer."""
    return _PROBE.format(nodes=" ".join(f"{n.name}:{n.address}" for n in nodes))
