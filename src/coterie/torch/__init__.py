"""PyTorch in a federation: clients that train an `nn.Module`, and such a module as the server's model.

pip install 'coterie[torch]'
"""

from coterie.errors import SettingError

try:
    import flwr  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    raise SettingError(
        f"coterie.torch needs PyTorch and Flower, and {error.name} is not installed: "
        "install 'coterie[torch]'."
    ) from error

from coterie.torch.client import TorchClient
from coterie.torch.model import TorchModel

__all__ = ["TorchClient", "TorchModel"]
