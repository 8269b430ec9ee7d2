"""Shards of a few small clients, in as many buckets as those of large ones would be."""

from unittest import mock

# a context or a decorator: few small clients would be padded to the largest, and share a bucket
many_buckets = mock.patch("coterie.data.shards.PADDING", 0)
