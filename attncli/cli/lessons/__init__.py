"""`attn lesson`: the pages of the lessons, with their commands run as the reader comes to them."""
