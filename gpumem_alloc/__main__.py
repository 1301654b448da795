"""`python -m gpumem_alloc`; see `gpumem_alloc/cli/`."""

from gpumem_alloc.cli import main

if __name__ == "__main__":
    main()
