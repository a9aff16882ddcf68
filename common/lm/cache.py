"""A key-value cache with room: a token is written in place, where transformers' own copies the whole cache for each.

Imported by common/lm/llm.py when it generates: transformers takes seconds to import.
"""

from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """A layer whose keys and values [B, H, T, D] are the filled beginning of larger tensors."""

    def __init__(self, keys, values, filled):
        super().__init__()
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
        self.key_room, self.value_room = keys, values
        self._fill(filled)

    def _fill(self, length):
        self.keys, self.values = self.key_room[:, :, :length], self.value_room[:, :, :length]

    def update(self, key_states, value_states, *args, **kwargs):
        """Write [B, H, T', D] behind what is there; all of it up to now."""
        start, end = self.keys.shape[2], self.keys.shape[2] + key_states.shape[2]
        self.key_room[:, :, start:end], self.value_room[:, :, start:end] = key_states, value_states
        self._fill(end)
        return self.keys, self.values

    def batch_select_indices(self, indices):
        """Keep these rows only."""
        length = self.keys.shape[2]
        self.key_room, self.value_room = self.key_room[indices], self.value_room[indices]
        self._fill(length)


def with_room(groups, rows, width, room):
    """One cache of the groups' caches, padded on the left to one width, with room for as many tokens more.

    groups: caches of plain layers; rows: for each of them, which of its rows each row of the new one is.
    """
    layers = []
    for parts in zip(*[group.layers for group in groups], strict=True):
        shape = (sum(map(len, rows)), parts[0].keys.shape[1], width + room, parts[0].keys.shape[3])
        filled = [parts[0].keys.new_zeros(shape), parts[0].values.new_zeros((*shape[:3], parts[0].values.shape[3]))]
        first = 0
        for part, mine in zip(parts, rows, strict=True):
            last, start = first + len(mine), width - part.keys.shape[2]
            filled[0][first:last, :, start:width] = part.keys[mine]
            filled[1][first:last, :, start:width] = part.values[mine]
            first = last
        layers.append(RoomyLayer(*filled, width))
    cache = DynamicCache()
    cache.layers = layers
    return cache


def is_plain(config):
    """Whether every layer of such a model keeps all keys and values: no sliding window and the like."""
    return all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
