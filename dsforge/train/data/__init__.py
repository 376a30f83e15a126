"""From files of rows to batches of tokens: reading, tokenizing, packing, caching, ordering."""
