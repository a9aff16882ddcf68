"""Networks as the scripts make them, for tests."""

import torch

from common.lm.net import Net


def net_of(model, reader, args, rate=None, sgd=False):
    """A Net with the arguments' sizes; with a `rate` its own optimiser, with `sgd` one that changes nothing."""
    net = Net(model, reader, args.micro_batch_tokens, args.adam_eps)
    if sgd:
        net.optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return net if rate is None else net.begin(rate)
