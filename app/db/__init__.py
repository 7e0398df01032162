"""The console's database: models and repositories."""
