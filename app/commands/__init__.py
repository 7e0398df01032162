"""The commands of `quorumscope`, one file per family; `app.command_line` puts them together."""
