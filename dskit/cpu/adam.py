"""DeepSpeed's fused Adam on CPU without its C++ extension, which takes minutes to compile on a laptop.

DeepSpeed's ``FusedAdam`` hands lists of tensors to ``multi_tensor_adam`` of an extension that it builds at
first use. The same update is in PyTorch as a fused CPU kernel, and that is what is called here.
"""

import torch
from torch.optim.adam import adam
from torch.optim.adamw import adamw

from dskit.errors import DskitError


class FusedAdamOnTorch:
    """Stands for DeepSpeed's op builder and for the extension that it loads."""

    def load(self, verbose: bool = True):
        """Return the object that offers ``multi_tensor_adam``."""
        return self

    @staticmethod
    def multi_tensor_adam(
        chunk_size, overflow, tensors, lr, beta1, beta2, eps, step, decoupled, bias_correction, weight_decay
    ) -> None:
        """One Adam step, in place.

        Args:
            chunk_size, overflow: for GPUs; not used.
            tensors: four lists of equal length: gradients, parameters, first and second moments.
            lr, beta1, beta2, eps, weight_decay: as in ``torch.optim.Adam``.
            step: number of this step, from 1.
            decoupled: 1 for AdamW's weight decay, 0 for L2.
            bias_correction: 1 for the corrected moments of the paper.

        Raises:
            DskitError: bias correction is off, which PyTorch's Adam cannot do.
        """
        if not bias_correction:
            raise DskitError(
                "The optimizer's configuration could not be served on CPU ranks.",
                'It has "bias_correction": false, which PyTorch\'s Adam does not offer.',
                "Leave bias_correction on, or run on CUDA ranks.",
            )
        grads, params, first, second = tensors
        update = adamw if decoupled else adam
        with torch.no_grad():
            update(
                params,
                grads,
                first,
                second,
                max_exp_avg_sqs=[],
                state_steps=[torch.tensor(float(step - 1)) for _ in params],  # the update counts up by one
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=lr,
                weight_decay=weight_decay,
                eps=eps,
                maximize=False,
            )
