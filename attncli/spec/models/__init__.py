"""The settings of experiments that look into a pretrained model."""
