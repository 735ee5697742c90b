"""The numeric ids that people may have on a cluster: lower ones belong to the system. Programs of nodes read it too."""

from __future__ import annotations

FIRST_UID = 1000
LAST_UID = 60000
