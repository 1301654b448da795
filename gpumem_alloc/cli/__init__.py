"""The command line. Results go to stdout; errors go to stderr.

Exit codes: 2 for bad input, 3 if an allocator ran out of memory, 1 for any other failure.
"""

from gpumem_alloc.cli.app import main

__all__ = ["main"]
