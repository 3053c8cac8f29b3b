"""From targets to files: plan, apply, diff, status, revert, run and bundle."""
