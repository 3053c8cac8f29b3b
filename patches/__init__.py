"""Knowledge of upstream projects: declarations, one module per project, without any I/O."""
