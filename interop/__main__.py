"""`python -m interop` does what the `interop` command does."""

from interop._commands.cli import main

raise SystemExit(main())
