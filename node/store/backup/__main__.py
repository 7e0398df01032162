"""`python -m node.store.backup`: see command.py."""

import sys

from node.store.backup.command import main

if __name__ == "__main__":
    sys.exit(main())
