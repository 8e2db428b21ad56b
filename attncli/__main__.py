"""python -m attncli"""

from attn_start import main

main()
