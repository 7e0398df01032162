"""Audits on Spark: the data source, the comparison, the job and its runner."""
