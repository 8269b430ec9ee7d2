"""Every test process has three JAX devices, so that clients are spread unevenly, and a cache of its own."""

import os
import tempfile

import jax

os.environ["COTERIE_CACHE"] = tempfile.mkdtemp(prefix="coterie-cache-")
jax.config.update("jax_num_cpu_devices", 3)
