"""The one order of stages. `duplicates`, `similar` and `catalogue` are barriers; users know the other ten."""

from editfoundry.data_engine.stages.base import Stage
from editfoundry.data_engine.stages.caption import Caption
from editfoundry.data_engine.stages.catalogue import Catalogue
from editfoundry.data_engine.stages.detect import Detect
from editfoundry.data_engine.stages.duplicates import Duplicates
from editfoundry.data_engine.stages.emit import Emit
from editfoundry.data_engine.stages.filter import Filter
from editfoundry.data_engine.stages.ingest import Ingest
from editfoundry.data_engine.stages.instruct import Instruct
from editfoundry.data_engine.stages.qualify import Qualify
from editfoundry.data_engine.stages.render import Render
from editfoundry.data_engine.stages.segment import Segment
from editfoundry.data_engine.stages.similar import Similar
from editfoundry.data_engine.stages.verify import Verify

STAGES: tuple[type[Stage], ...] = (
    Ingest,
    Duplicates,
    Filter,
    Similar,
    Caption,
    Detect,
    Segment,
    Qualify,
    Catalogue,
    Instruct,
    Render,
    Verify,
    Emit,
)
