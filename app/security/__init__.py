"""Sessions, tokens, roles, CSRF and the admin trail."""
