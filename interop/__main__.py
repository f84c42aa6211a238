"""`python -m interop` does what the `interop` command does."""

from interop._cli import main

raise SystemExit(main())
