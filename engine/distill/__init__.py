"""Makes drafts for a target: its own generations as data, training by distillation, files. Called by `cli.distill`."""
