"""`python -m node.store.repair DIR [one action]`: see command.py."""

import sys

from node.store.repair.command import main

if __name__ == "__main__":
    sys.exit(main())
