"""NVIDIA's IMEX on a machine of a rehearsed UltraServer: a service that answers, and the program that asks all of them.

Names, files and output follow NVIDIA's guide (docs.nvidia.com/multi-node-nvlink-systems/imex-guide). Nothing is mapped
over NVLink; but a node is READY only while its own service runs, which the prolog of its job must have started.
"""

from __future__ import annotations

from cluster.catalog import software
from infra.targets.aws.rehearse.file import File
from slurm.health.imex import SERVICE

_PROGRAM = 0o755
_PORT = 50000
_CONFIG = f"SERVER_PORT={_PORT}\nIMEX_CMD_ENABLED=0\n"
_UNIT = f"""\
[Unit]
Description=NVIDIA IMEX service

[Service]
ExecStart=/usr/bin/{SERVICE}
"""
_SERVICE = f"""\
#!/usr/bin/python3
import socket
with socket.create_server(("", {_PORT})) as server:
    while True:
        server.accept()[0].close()
"""
_CONTROL = """\
#!/usr/bin/python3
import socket, sys
if sys.argv[1:] != ["-N"]:
    sys.exit(f"nvidia-imex-ctl stand-in: {sys.argv[1:]}")
states = []
for number, address in enumerate(open("/etc/nvidia-imex/nodes_config.cfg").read().split()):
    try:
        socket.create_connection((address, @PORT@), timeout=1).close()
        states.append("READY")
    except OSError:
        states.append("UNAVAILABLE")
    print(f"Node #{number}   - {address:<15} - {states[-1]:<20} - Version: @VERSION@")
print("Domain State:", "UP" if set(states) == {"READY"} else "DEGRADED")
"""


def list_imex_files() -> dict[str, File]:
    """Return, by path without the leading slash, the files of the service."""
    control = _CONTROL.replace("@PORT@", str(_PORT)).replace("@VERSION@", software.components()["driver"].version or "")
    return {
        f"etc/{SERVICE}/config.cfg": File(_CONFIG),
        f"etc/systemd/system/{SERVICE}.service": File(_UNIT),
        f"usr/bin/{SERVICE}": File(_SERVICE, _PROGRAM),
        f"usr/bin/{SERVICE}-ctl": File(control, _PROGRAM),
    }
