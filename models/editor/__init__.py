"""The editor: a vision-language model and SigLIP condition a FLUX transformer through two small connectors."""
