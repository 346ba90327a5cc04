"""Where an object could stand: placement zones from the manifest, or estimated from the picture."""
