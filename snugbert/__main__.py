"""`python -m snugbert` runs `snugbert`. `accelerate launch -m snugbert ...` runs it on several processes."""

import sys

from snugbert_cli import main

if __name__ == "__main__":
    sys.exit(main())
