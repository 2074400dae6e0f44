"""What the recipes of the trainers share around their loops: options, speech,
and checkpoints."""

from small_training.checkpoint import save_whole
from small_training.options import read_options
from small_training.speech import Segments

__all__ = ["Segments", "read_options", "save_whole"]
