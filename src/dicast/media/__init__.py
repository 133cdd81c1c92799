"""Images and videos: bytes -> pixels, safely. Knows nothing of models, tokens ids or HTTP.

* :func:`decode_image`, :func:`decode_video`: one asset from anything that can hold one, in this process;
* :func:`shown_record`: all media of a record, for a model that reads them;
* :class:`MediaWorker`: the same for bytes of strangers, in processes of bounded memory and time;
* :class:`MediaLimits`: what an asset may cost; :class:`RemotePolicy`: where it may be fetched from (nowhere, by
    default);
* :func:`image_tokens`, :func:`video_tokens`: what an asset costs in tokens, from its size alone.
"""

from dicast.media.cost import Geometry, image_tokens, smart_resize, video_tokens
from dicast.media.images import check_image_bytes, decode_image, is_pillow
from dicast.media.limits import DEFAULT_LIMITS, MediaLimits, check_count
from dicast.media.remote import RemotePolicy
from dicast.media.sampling import sample_indices
from dicast.media.shown import SEEING_MODEL, shown_record
from dicast.media.sniff import image_size, sniff
from dicast.media.sources import read_source, read_wire_source
from dicast.media.videos import Video, check_video_bytes, decode_video, from_frames
from dicast.media.worker import MediaWorker

__all__ = [
    "DEFAULT_LIMITS",
    "Geometry",
    "MediaLimits",
    "MediaWorker",
    "RemotePolicy",
    "SEEING_MODEL",
    "Video",
    "check_count",
    "check_image_bytes",
    "check_video_bytes",
    "decode_image",
    "decode_video",
    "from_frames",
    "image_size",
    "image_tokens",
    "is_pillow",
    "read_source",
    "read_wire_source",
    "sample_indices",
    "shown_record",
    "smart_resize",
    "sniff",
    "video_tokens",
]
