"""Run the trainer, then print the packages that this process has imported as a line of JSON.

python -m tests.trainer.list_imports PRESET key=value ...
"""

from __future__ import annotations

import json
import sys

from trainer.__main__ import main

if __name__ == "__main__":
    status = main(sys.argv[1:])
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
    sys.exit(status)
