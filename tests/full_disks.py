"""What tests of retention say of the disk that they run on: however full it is, no file goes for that."""

from typing import Final

HOWEVER_FULL: Final = {
    "retention.disk_space_ratio_to_check_expired": "0.98",
    "retention.disk_space_ratio_to_force_clean": "0.99",
    "retention.disk_full_ratio": "1",
}
