"""The eyes of assets/tiny-vl: a small convolutional tower that transformers' auto classes can load.

Patch embeddings did not learn to tell shapes at this size (docs/grpo_async.md); three strided convolutions do.
Importing this module registers the tower, so that AutoModelForImageTextToText opens a checkpoint that has it.
"""

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput


class TinyVisionConfig(PretrainedConfig):
    """Channels and strides of the convolutions; their product is the side of the patch that a token stands for."""

    model_type = "cleangui_tiny_vision"

    def __init__(self, hidden_size=96, channels=(24, 48, 96), strides=(2, 2, 3), image_size=96, **rest):
        self.hidden_size, self.image_size = hidden_size, image_size
        self.channels, self.strides = list(channels), list(strides)
        super().__init__(**rest)


class TinyVisionModel(PreTrainedModel):
    """Images [N, 3, S, S] -> one token per patch, row by row: [N, (S / patch)^2, hidden]."""

    config_class = TinyVisionConfig
    main_input_name = "pixel_values"
    base_model_prefix = "vision"

    def __init__(self, config):
        super().__init__(config)
        layers, width, side = [], 3, config.image_size
        for channels, stride in zip(config.channels, config.strides, strict=True):
            kernel = 4 if width == 3 else 3
            layers += [nn.Conv2d(width, channels, kernel, stride, 1), nn.BatchNorm2d(channels), nn.GELU()]
            width, side = channels, side // stride
        self.stem = nn.Sequential(*layers, nn.Conv2d(width, config.hidden_size, 3, 1, 1))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.places = nn.Parameter(torch.empty(side * side, config.hidden_size))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):
        """Torch's own initialisation for the layers; what has none is drawn here."""
        if module is self:
            init.normal_(self.places, 0.0, 0.3)  # transformers' own: it leaves alone what a checkpoint has filled

    def forward(self, pixel_values, **_):
        tokens = self.norm(self.stem(pixel_values).flatten(2).transpose(1, 2)) + self.places
        return BaseModelOutput(last_hidden_state=tokens, hidden_states=(tokens,))


AutoConfig.register(TinyVisionConfig.model_type, TinyVisionConfig)
AutoModel.register(TinyVisionConfig, TinyVisionModel)
