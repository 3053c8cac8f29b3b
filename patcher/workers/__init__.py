"""What the probes of a run tell while it goes on: their states, whether they live, and what is asked of them."""
