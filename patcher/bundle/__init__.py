"""One file for machines without rlpatch: `archive` makes it, `start` begins it there, the rest is what it carries."""
