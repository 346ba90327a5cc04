"""Turn planned edits into pixels."""
from editfoundry.core.config import Config
class RenderConfig(Config):
    pass
