"""The configuration of a run: one section per stage, plus what all stages share."""

from editfoundry.data_engine.shared_config import SharedConfig
from editfoundry.data_engine.stages.caption import CaptionConfig
from editfoundry.data_engine.stages.catalogue import CatalogueConfig
from editfoundry.data_engine.stages.detect import DetectConfig
from editfoundry.data_engine.stages.duplicates import DuplicatesConfig
from editfoundry.data_engine.stages.emit import EmitConfig
from editfoundry.data_engine.stages.filter import FilterConfig
from editfoundry.data_engine.stages.ingest import IngestConfig
from editfoundry.data_engine.stages.instruct import InstructConfig
from editfoundry.data_engine.stages.qualify import QualifyConfig
from editfoundry.data_engine.stages.render import RenderConfig
from editfoundry.data_engine.stages.segment import SegmentConfig
from editfoundry.data_engine.stages.similar import SimilarConfig
from editfoundry.data_engine.stages.verify import VerifyConfig


class RunConfig(SharedConfig):
    """Everything that decides a dataset's bytes."""

    name: str = "editfoundry"

    ingest: IngestConfig
    duplicates: DuplicatesConfig = DuplicatesConfig()
    filter: FilterConfig = FilterConfig()
    similar: SimilarConfig = SimilarConfig()
    caption: CaptionConfig = CaptionConfig()
    detect: DetectConfig = DetectConfig()
    segment: SegmentConfig = SegmentConfig()
    qualify: QualifyConfig = QualifyConfig()
    catalogue: CatalogueConfig = CatalogueConfig()
    instruct: InstructConfig = InstructConfig()
    render: RenderConfig = RenderConfig()
    verify: VerifyConfig = VerifyConfig()
    emit: EmitConfig = EmitConfig()
