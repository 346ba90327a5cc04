"""Gates."""
from editfoundry.core.config import Config
class VerifyConfig(Config):
    pass
