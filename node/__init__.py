"""Everything a member of a replicated log runs. Imports nothing from app/."""
