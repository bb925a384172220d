"""Entry point of `python -m backstay`, the same as the command `backstay`."""

import sys

from backstay.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
