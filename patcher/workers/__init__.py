"""Workers of a run while it goes on: their states, whether they live, and the requests to them."""
