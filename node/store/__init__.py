"""The log on disk: records and segments as DLedger writes them, with what DLedger does not keep beside them."""
