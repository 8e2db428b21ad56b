"""python -m attncli"""

from attncli.cli.main import main

main()
