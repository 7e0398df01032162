"""The console's REST API, one router per resource."""
