"""`python -m editfoundry` is the console command."""

from editfoundry.cli import main

main()
