"""`python -m snugbert` is `snugbert`; `accelerate launch -m snugbert ...` starts it on many processes."""

import sys

from snugbert.cli import main

if __name__ == "__main__":
    sys.exit(main())
