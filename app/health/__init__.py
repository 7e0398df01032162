"""Health rules: problems of a group and what to do about them, shared by console and `status`. Pure."""
