"""What the recipes of the trainers share around their loops: options, speech, progress
and checkpoints."""

from small_training.checkpoints import folder_beside, resumable, save_beside
from small_training.options import main_of
from small_training.progress import Progress
from small_training.speech import Segments, check_batch

__all__ = [
    "Progress",
    "Segments",
    "check_batch",
    "folder_beside",
    "main_of",
    "resumable",
    "save_beside",
]
