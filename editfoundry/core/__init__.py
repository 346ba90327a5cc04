"""What every part shares: configuration, images, geometry, hashing, progress, pages."""
