"""A look at releases that no recipe names yet, and the tables that are made from the recipes: see ``__main__``."""
