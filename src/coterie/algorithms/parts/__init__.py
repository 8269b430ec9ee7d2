"""What algorithms are given: averaging, weight sharing, settling, revival, re-sampling; each by itself."""
