"""Messages about problems: which are due (`rules`), what they say (`message`), and how they travel."""
