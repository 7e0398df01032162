"""The commands of `quorumscope`, one file per family; `app.cli` puts them together."""
