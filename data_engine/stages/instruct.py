"""Plan edits and word their instructions."""
from editfoundry.core.config import Config
class InstructConfig(Config):
    pass
